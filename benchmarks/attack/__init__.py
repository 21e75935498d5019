"""The server under attack: what honest clients feel, what memory it takes, and whether it lives.

Attackers, honest clients and the clock on `/health` are processes of their own, so that the work of one does not delay
what another measures. Attackers come from addresses of their own (127.0.0.2 and up).

    catalogue ─▶ attacker (process) ─▶ server ◀─ honest streams, /health (processes)
                                          │ memory, life              │ sightings
                                          └────────▶ field ◀──────────┘ ─▶ trial, mixture, crowd, tenants ─▶ section
"""
