"""vLLM's CPU build and OpenVINO GenAI beside inflight: same cores, same weights, same requests, taking turns.

1. Make the peers' environments, in a folder of your own outside of the checkout (about 5 GB):

       benchmarks/peers/setup.sh ~/peers

2. Measure, in the environment that `./check` makes (its torch writes the checkpoint of random weights, once, into the
   same folder; about 4 GB for Qwen2.5-0.5B's shape with the copies that the peers want):

       python -m benchmarks.peers --folder ~/peers --write

   Three rounds of bf16 and int8 take nearly two hours on two cores, and want a machine that does nothing else;
   with `--record FILE --rounds 1` they can be run one by one, and those in the file count. One round with fewer sizes,
   `--quick`, takes less than a quarter of an hour. Without its environment a peer is left out, and the table says so.
   vLLM's very first start of a model compiles it, and takes a minute longer than later ones.

Each engine runs in a process of its own (`run_*.py`, by its own python, which needs nothing of inflight) and is fed
token ids through its own Python API: `stepping` is the protocol. What is measured, `trials` says; whose turn it is and
which runs count, `contest`. An engine beside these is one more runner and one more entry in `engines`.
"""
