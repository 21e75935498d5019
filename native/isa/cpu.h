// Features that the CPU and its system have, by the compiler's names for them.
//
// CMakeLists.txt has one list of features for each instruction set: it becomes the flags that kernels are compiled
// with, and the question that is asked here. Compiled without flags of its own.
#pragma once
#include <cstddef>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace inflight {

#if defined(__x86_64__)
// Whether this process may use AMX's tile registers: the system saves them and permits it. Linux has to be asked, since
// they take 8 KiB of each thread that uses them; the answer is for all threads of the process.
inline bool may_use_tiles() {
#if defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
  unsigned saved = 0, high = 0;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr unsigned tiles = 1u << 17 | 1u << 18;  // their shapes, their data
  constexpr long request_permission = 0x1023, tile_data = 18;
  return (saved & tiles) == tiles && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

inline bool cpu_has_tiles(unsigned bit) {
#if defined(INFLIGHT_EMULATED_TILES)  // by a test
  return true;
#endif
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << bit) && may_use_tiles();
}
#endif

// False for a feature that is not listed. The compiler's builtin also asks whether the system saves the wide registers.
inline bool cpu_has(std::string_view feature) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (feature == "avx2") return __builtin_cpu_supports("avx2");
  if (feature == "fma") return __builtin_cpu_supports("fma");
  if (feature == "avx512f") return __builtin_cpu_supports("avx512f");
  if (feature == "avx512bw") return __builtin_cpu_supports("avx512bw");
  if (feature == "avx512dq") return __builtin_cpu_supports("avx512dq");
  if (feature == "avx512vl") return __builtin_cpu_supports("avx512vl");
  if (feature == "avx512vnni") return __builtin_cpu_supports("avx512vnni");
  if (feature == "avx512bf16") return __builtin_cpu_supports("avx512bf16");
  if (feature == "f16c") {  // not every compiler's builtin knows this name
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && __builtin_cpu_supports("avx");
  }
  if (feature == "avxvnni") {  // alike
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) && __builtin_cpu_supports("avx2");
  }
  if (feature == "amx-bf16") return cpu_has_tiles(22);
  if (feature == "amx-tile") return cpu_has_tiles(24);
  if (feature == "amx-int8") return cpu_has_tiles(25);
#elif defined(__aarch64__) && defined(__linux__)  // by the numbers of its interface, which older headers have not
  if (feature == "dotprod") return getauxval(AT_HWCAP) & 1ul << 20;
  if (feature == "i8mm") return getauxval(AT_HWCAP2) & 1ul << 13;
  if (feature == "bf16") return getauxval(AT_HWCAP2) & 1ul << 14;
#elif defined(__aarch64__) && defined(__APPLE__)
  const auto says = [](const char* name) {
    int value = 0;
    std::size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  };
  if (feature == "dotprod") return says("hw.optional.arm.FEAT_DotProd");
  if (feature == "i8mm") return says("hw.optional.arm.FEAT_I8MM");
  if (feature == "bf16") return says("hw.optional.arm.FEAT_BF16");
#else
  (void)feature;
#endif
  return false;
}

// Whether it has all of them, separated by spaces.
inline bool cpu_has_all(std::string_view features) {
  while (!features.empty()) {
    const std::size_t end = features.find(' ');
    if (!cpu_has(features.substr(0, end))) return false;
    features = end == std::string_view::npos ? "" : features.substr(end + 1);
  }
  return true;
}

}  // namespace inflight
