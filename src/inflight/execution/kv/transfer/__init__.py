"""KV transfer: blocks of a prompt that one engine has computed are copied to another, beside the steps of both.

One engine exports (prefill), the other pulls (decode); either may do both:

    engine that computes the prompt                            engine that continues it
    plan: send, with a transfer   ─▶ exports                   plan: receive, with a transfer ─▶ client
                                       │ (group, name) ─▶ block    a thread, with a connection that it keeps
                                     server ◀── handshake: secret, then description ──┘
                                       │ a thread for each connection
                                       └── blocks, in the order of the pull, by a transport ──▶ its own blocks
    poll: the transfer has ended  ◀── taken, or too late       poll: the transfer has ended, or failed

Blocks are pulled by their groups and by names, which are hashes of salt, adapter and tokens: only an engine with the
same request knows them, and an export's id alone opens nothing. A client pulls from its first missing block on. Blocks
that are not computed yet are waited for, and sent layer by layer while a step computes them (`plan.early_sends`). They
may be used once a transfer of the server's engine holds the same blocks. An error fails its transfer alone, and the
engine that pulled computes the rest itself.

`peer_transfers` joins it to an executor, by way of host blocks where a device has memory of its own (`staged_peers`);
`exports` are held for peers; `server` and `client` are the two sides of a connection; `handshake`, `description` and
`wire` are what is sent on one; `transports` send blocks in the connection's stream, or by `nixl`.
"""
