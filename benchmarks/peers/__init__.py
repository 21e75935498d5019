"""llama.cpp, OpenVINO GenAI, ONNX Runtime GenAI and vLLM's CPU build beside inflight: same cores, same weights, same
requests, taking turns.

1. Make the peers' environments, in a folder of your own outside of the checkout (about 9 GB):

       benchmarks/peers/setup.sh ~/peers

2. Measure, in the environment that `./check` makes (its torch writes the checkpoints of random weights, once, into the
   same folder; about 4 GB for Qwen2.5-0.5B's shape with the copies that the peers want, 12 GB for the mixture's):

       python -m benchmarks.peers --folder ~/peers --write
       python -m benchmarks.peers --folder ~/peers --precisions q4_0,q4_k_m,int4-all,int4 --quick --rounds 5 \\
           --minutes 8 --write

       python -m benchmarks.peers --folder ~/peers --model gemma3-270m --precisions file --peers llama --write

   Three rounds of the first, bf16 and int8, take nearly two hours on two cores, and want a machine that does nothing
   else; with `--record FILE --rounds 1` they can be run one by one, and those in the file count. `--quick` takes some
   minutes a round, `--minutes` ends the rounds, and `--rounds 0` makes the checkpoints and measures nothing. Without
   its environment a peer is left out, and the table says so; of what a peer's own tools cannot make, their last words
   are kept in a file NAME.failed, and reported. vLLM's very first start of a model compiles it, and takes a minute
   longer than later ones.

Precisions are those of `engines.PRECISIONS`; in 4 bits inflight and llama.cpp load the very same GGUF file, which
llama.cpp's own quantizer makes of the checkpoint.

Each engine runs in a process of its own (`run_*.py`, by its own python, which needs nothing of inflight) and is fed
token ids through its own Python API: `stepping` is the protocol. What is measured, `trials` says; whose turn it is and
which runs count, `contest`. An engine beside these is one more runner and one more entry in `engines`.
"""
