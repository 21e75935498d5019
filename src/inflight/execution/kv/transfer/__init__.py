"""KV exchange: keys and values of a prompt that one engine has computed, taken over by another beside its steps.

One engine sends (prefill), the other pulls (decode); either may be both. How a prompt's blocks travel:

    the engine that computes it                               the engine that goes on with it
    plan: send, with a transfer   ─▶ exports                  plan: receive, with a transfer ─▶ pulls
                                       │  names ─▶ blocks       a thread, with a connection that it keeps
                                     provider ◀── handshake: secret, then description ──┘
                                       │  a thread for each connection
                                       └── blocks, in the order of names, by one of the ways ──▶ its own blocks
    poll: the transfer has ended  ◀── taken, or too late       poll: the transfer has ended, or failed

Blocks are asked for by names that are made of salt, adapter and tokens: who does not have the same request does not
know them, and an id alone opens nothing. A peer pulls from its first missing block on. What is not computed yet is
waited for, and travels layer by layer while the step that computes it goes on (`plan.early_sends`): of each block the
bytes of the layers that are done. What has come so may be used once a transfer of the other side holds the same blocks.
Whatever goes wrong fails the transfer alone, and the engine that pulled computes the rest itself.

`exchange` joins it to an executor; `exports` is what is held for others; `provider` and `pulls` are the two sides of a
connection, `arrivals` what of a pull has come; `handshake`, `description` and `wire` what is said on one; `ways` how
blocks travel: in the `stream` itself, through `shared_memory` on one host, or by `nixl`.
"""
