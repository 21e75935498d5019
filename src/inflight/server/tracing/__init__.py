"""Traces: a span for every request, and within it one for each stage, sent to an OpenTelemetry collector.

    middleware ─▶ RequestTrace (routes note: stages, the call, its generation)
                        │ at its end
                        ▼
                 call_spans: names, times, attributes ─▶ tracer (the SDK) ─▶ collector

OpenTelemetry's SDK is loaded by `tracer` alone, with `--otlp-traces-endpoint`. Spans are made when the request has
ended, from the engine's timings: while it runs, a trace costs some readings of a clock.
"""
