"""Traces: a span for every request, and within it one for each stage, sent to an OpenTelemetry collector.

    middleware ─▶ RequestTrace (what routes note: stages, the call, its generation)
                        │ at its end
                        ▼
                 call_spans: names, times, attributes ─▶ tracer (the SDK) ─▶ collector

Nothing here but `tracer` knows OpenTelemetry's SDK, and that is loaded with `--otlp-traces-endpoint` alone. Spans are
made when the request has ended, of what the engine has kept anyway: while it runs, a trace costs some readings of a
clock.
"""
