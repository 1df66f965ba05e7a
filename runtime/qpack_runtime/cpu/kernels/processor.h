// What this processor can run, asked of the processor itself: Zig's libraries answer no to every __builtin_cpu_supports.
#pragma once
#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>

namespace processor {

struct Registers {
  uint32_t a, b, c, d;
};

inline Registers cpuid(uint32_t leaf) {
  Registers found{};
  __get_cpuid_count(leaf, 0, &found.a, &found.b, &found.c, &found.d);  // all 0 where there is no such leaf
  return found;
}

// The registers that the kernel saves for a process, as bits of XCR0: a processor's word alone is not enough.
inline bool saved(uint32_t bits) {
  if (!(cpuid(1).c >> 27 & 1)) return false;  // OSXSAVE
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & bits) == bits;
}

inline bool all(uint32_t word, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(word >> bit & 1)) return false;
  return true;
}

// Everything that -march=x86-64-v3 lets a compiler use.
inline bool runs_v3() {
  return saved(0x6) && all(cpuid(1).c, {12, 22, 28, 29})  // FMA, MOVBE, AVX, F16C
         && all(cpuid(7).b, {3, 5, 8})                    // BMI1, AVX2, BMI2
         && all(cpuid(0x80000001).c, {5});                // LZCNT
}

// -march=x86-64-v4 -mavx512vnni.
inline bool runs_v4_vnni() {
  return runs_v3() && saved(0xe6) && all(cpuid(7).b, {16, 17, 28, 30, 31})  // AVX512 F, DQ, CD, BW, VL
         && all(cpuid(7).c, {11});                                          // VNNI
}

}  // namespace processor
#elif defined(__aarch64__)
#include <sys/auxv.h>

namespace processor {

// -march=armv8.2-a+dotprod+fp16; among the HWCAP bits, atomics, 16-bit floats (both kinds), rounding and products.
inline bool runs_neon() {
  constexpr unsigned long NEEDED = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 20;  // CRC32, ATOMICS, FPHP, ASIMDHP, ASIMDRDM, ASIMDDP
  return (getauxval(AT_HWCAP) & NEEDED) == NEEDED;
}

}  // namespace processor
#endif
