// Print those of the given features that this machine has. CMakeLists.txt runs it to find what a build for this machine
// alone compiles.
#include <cstdio>

#include "isa/cpu.h"

int main(int count, char** features) {
  for (int i = 1; i < count; ++i)
    if (inflight::cpu_has(features[i])) std::printf("%s;", features[i]);
}
