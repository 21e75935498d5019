// A vocabulary's logits of one row: the largest of every 64, by which values near the largest are found without looking
// at the others, and the exponentials of all.
#pragma once
#include "isa/elementary.h"
#include "sampling/candidates.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t sample_block = 64;
constexpr float minus_infinity = -__builtin_inff();

// Hands out parts of a worker's memory.
class Parts {
 public:
  explicit Parts(char* memory) : memory_(memory) {}
  template <class T>
  T* take(std::int64_t count) {
    char* at = memory_;
    memory_ += (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }

 private:
  char* memory_;
};

// A sum of exponentials: what it is in double precision lies within `error` of `total`.
struct Mass {
  double total, error;
};

class RowLogits {
 public:
  RowLogits(float* logits, std::int64_t vocabulary, Parts& memory)
      : logits_(logits), count_(vocabulary), blocks_((vocabulary + sample_block - 1) / sample_block) {
    tops_ = memory.take<float>(blocks_);
    masses_ = memory.take<double>(blocks_);
  }

  float* logits() const { return logits_; }
  std::int64_t count() const { return count_; }
  std::int64_t blocks() const { return blocks_; }
  float top(std::int64_t block) const { return tops_[block]; }
  double mass(std::int64_t block) const { return masses_[block]; }  // of the sum that was asked for last
  std::int64_t end(std::int64_t block) const {
    return (block + 1) * sample_block < count_ ? (block + 1) * sample_block : count_;
  }

  // Replaces NaN by −∞ and finds the largest of every block.
  void look() {
    for (std::int64_t b = 0; b < blocks_; ++b) look(b);
  }

  // Memory is written only where there is a NaN: logits of many rows come from past the caches.
  void look(std::int64_t block) {
    const std::int64_t first = block * sample_block, last = end(block);
    vf top = all(minus_infinity);
    vi broken{};
    std::int64_t i = first;
    for (; i + lanes <= last; i += lanes) {
      const vf x = load<vf>(logits_ + i);
      broken |= x != x;
      top = max(x, top);  // a NaN is never larger
    }
    float one = largest(top);
    for (; i < last; ++i)
      if (logits_[i] > one) one = logits_[i];
    tops_[block] = one;
    if (last - first < sample_block || any(broken))
      for (i = first; i < last; ++i)
        if (logits_[i] != logits_[i]) logits_[i] = minus_infinity;
  }

  std::int64_t greedy() const {
    std::int64_t block = 0;
    for (std::int64_t b = 1; b < blocks_; ++b)
      if (tops_[b] > tops_[block]) block = b;
    for (std::int64_t i = block * sample_block; i < end(block); ++i)
      if (logits_[i] == tops_[block]) return i;
    return 0;
  }

  // e^(value / temperature − top) in double precision, of one value.
  static double weight(float scaled, double top) {
    double e[lanes / 2];
    store(e, exp(all(static_cast<double>(scaled) - top)));
    return e[0];
  }

  // The weights of as many logits as a vector holds, from the i-th on: their values divided by the temperature → two
  // halves.
  INLINE vf weights(std::int64_t i, vf divisor, double top, vd (&halves)[2]) const {
    const vf scaled = load<vf>(logits_ + i) / divisor;
    vf_half parts[2];
    std::memcpy(parts, &scaled, sizeof scaled);
    for (int h = 0; h < 2; ++h) halves[h] = exp(to_double(parts[h]) - top);
    return scaled;
  }

  // Weights of all logits: their sum, block by block.
  double total_mass(float temperature, double top) {
    double total = 0;
    for (std::int64_t b = 0; b < blocks_; ++b) total += masses_[b] = mass_of_block(b, temperature, top);
    return total;
  }

  // The same, where what lies far below the largest is summed in float32, which takes a quarter of the time.
  Mass about_total_mass(float temperature, double top) {
    const double size = top < 0 ? -top : top;
    if (!(size < 1e6)) return {total_mass(temperature, top), 0};
    const float near = static_cast<float>(top) - far_below;
    const Powers about(temperature, top);
    double total = 0, far = 0;
    for (std::int64_t b = 0; b < blocks_; ++b) {
      const std::int64_t first = b * sample_block;
      if (end(b) - first < sample_block || !(tops_[b] / temperature < near)) {
        total += masses_[b] = mass_of_block(b, temperature, top);
        continue;
      }
      vf sums = {};
      for (std::int64_t i = first; i < first + sample_block; i += lanes)
        sums += about(load<vf>(logits_ + i));
      const double mass = static_cast<double>(sum(sums));
      masses_[b] = mass, far += mass, total += mass;
    }
    // A weight e⁻ᵈ is off by a share: of |top| + d for what is rounded on the way to its exponent, and for the power of
    // two and the sum of a block. Weights of d above 24 are so small that their number bounds what they are off by.
    const double rounded = far * ((size + 24) * 2e-7 + 1.5e-6) + static_cast<double>(count_) * 2e-16;
    return {total, rounded + total * 1e-12};  // the other sums are in another order
  }

  // About the weights, to a ten thousandth, of those that divided by the temperature reach `least`.
  double mass_from(float least, float temperature, double top) const {
    const float near = before_division(least, temperature);
    const Powers about(temperature, top);
    double total = 0;
    for (std::int64_t b = 0; b < blocks_; ++b) {
      if (tops_[b] < near) continue;
      vf sums = {};
      std::int64_t i = b * sample_block;
      for (; i + lanes <= end(b); i += lanes) {
        const vf x = load<vf>(logits_ + i);
        sums += x >= near ? about(x) : vf{};
      }
      total += static_cast<double>(sum(sums));
      for (; i < end(b); ++i)
        if (logits_[i] >= near) total += weight(logits_[i] / temperature, top);
    }
    return total;
  }

  double log_of_sum() {
    float top = minus_infinity;
    for (std::int64_t b = 0; b < blocks_; ++b) top = tops_[b] > top ? tops_[b] : top;
    const double largest = top;
    return largest + __builtin_log(total_mass(1.0f, largest));
  }

  // A value that at least k logits (and few more) reach, from the largest of the blocks; `memory` of as many as there
  // are of these.
  float bound(std::int64_t k, Candidate* memory) const {
    if (k > blocks_ / 2) return minus_infinity;
    for (std::int64_t b = 0; b < blocks_; ++b) memory[b] = {tops_[b], static_cast<std::int32_t>(b)};
    order(memory, blocks_, k);
    return memory[k - 1].value;
  }

  // Of each logit that divided by the temperature reaches `least`, take(in that form, its id), by rising id.
  template <class Take>
  INLINE void each_from(float least, float temperature, Take&& take) const {
    const float near = before_division(least, temperature);
    const auto one = [&](std::int64_t i) {
      const float scaled = logits_[i] / temperature;
      if (scaled >= least) take(scaled, static_cast<std::int32_t>(i));
    };
    for (std::int64_t b = 0; b < blocks_; ++b) {
      if (tops_[b] < near) continue;
      std::int64_t i = b * sample_block;
      for (; i + lanes <= end(b); i += lanes)
        for (std::uint32_t bits = lanes_from(load<vf>(logits_ + i), near); bits != 0; bits &= bits - 1)
          one(i + __builtin_ctz(bits));
      for (; i < end(b); ++i) one(i);
    }
  }

  // Whether so large a share of the blocks have a logit that reaches it that candidates would be most of the
  // vocabulary.
  bool reached_by_many(float least, float temperature) const {
    const float near = before_division(least, temperature);
    std::int64_t many = 0;
    for (std::int64_t b = 0; b < blocks_; ++b) many += tops_[b] >= near;
    return many > 16 && many > blocks_ / 4;
  }

 private:
  static constexpr float far_below = 8;

  // Weights in float32.
  class Powers {
   public:
    Powers(float temperature, double top)
        : factor_(all(static_cast<float>(log2e / temperature))), shift_(all(static_cast<float>(-top * log2e))) {}
    INLINE vf operator()(vf logits) const { return power_of_two<5>(fma(logits, factor_, shift_)); }

   private:
    static constexpr double log2e = 1.4426950408889634;
    vf factor_, shift_;
  };

  // Compared before the division, with room for its rounding; then exactly.
  static float before_division(float least, float temperature) {
    const float product = least * temperature;
    return least == minus_infinity ? least : product - 1e-5f * __builtin_fabsf(product) - 1e-30f;
  }

  double mass_of_block(std::int64_t block, float temperature, double top) const {
    const std::int64_t last = end(block);
    std::int64_t i = block * sample_block;
    vd sums = {};
    for (; i + lanes <= last; i += lanes) {
      vd halves[2];
      weights(i, all(temperature), top, halves);
      sums += halves[0];
      sums += halves[1];
    }
    double mass = sum(sums);
    for (; i < last; ++i) mass += weight(logits_[i] / temperature, top);
    return mass;
  }

  float* logits_;
  std::int64_t count_, blocks_;
  float* tops_;
  double* masses_;
};

}  // namespace inflight::INFLIGHT_ISA
