// Logits that a row's filters leave, in buckets by their distance from the largest: only those in which a cut or the
// draw falls are put in order.
#pragma once
#include "isa/elementary.h"
#include "sampling/row_logits.h"

namespace inflight::INFLIGHT_ISA {

constexpr int buckets = 2048, buckets_per_unit = 64;

class Buckets {
 public:
  static std::int64_t bytes(std::int64_t vocabulary) { return vocabulary * 8 + buckets * 20 + 1024; }

  Buckets(std::int64_t vocabulary, Parts& memory) {
    placed_ = memory.take<Candidate>(vocabulary);
    begin_ = memory.take<std::int32_t>(buckets + 1);
    kept_ = memory.take<std::int32_t>(buckets);
    mass_ = memory.take<double>(buckets);
    ordered_ = memory.take<bool>(buckets);
  }

  // Of 8 bytes for each logit, before anything is placed.
  char* memory() const { return reinterpret_cast<char*>(placed_); }

  // Of n candidates by rising id; within a bucket they stay so.
  void fill(const Candidate* found, std::int64_t n, float top) {
    clear(top);
    for (std::int64_t i = 0; i < n; ++i) ++kept_[bucket(found[i].value)];
    begin_[0] = 0;
    for (int b = 0; b < buckets; ++b) begin_[b + 1] = begin_[b] + kept_[b], kept_[b] = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const int b = bucket(found[i].value);
      placed_[begin_[b] + kept_[b]++] = found[i];
    }
    for (int b = 0; b < buckets; ++b) mass_[b] = kept_[b] > 0 ? mass_of(placed_ + begin_[b], kept_[b], top_) : 0;
  }

  // Of all logits: counts and masses alone, with the bits that `fill` gives them. Who is in a bucket is looked up when
  // it is put in order.
  void fill_all(const RowLogits& row, float temperature, float top) {
    clear(top);
    row_ = &row, temperature_ = temperature;
    for (int b = 0; b < buckets; ++b) mass_[b] = 0;
    const vf divisor = all(temperature);
    std::int64_t i = 0;
    for (; i + lanes <= row.count(); i += lanes) {
      vd halves[2];
      const vf scaled = row.weights(i, divisor, top_, halves);
      const vf distance = min((all(top) - scaled) * all(float{buckets_per_unit}), all(float{buckets - 1}));
      const vi index = __builtin_convertvector(distance, vi);
      std::int32_t at[lanes];
      double weights[lanes];
      store(at, index), store(weights, halves[0]), store(weights + lanes / 2, halves[1]);
      for (int lane = 0; lane < lanes; ++lane) ++kept_[at[lane]], mass_[at[lane]] += weights[lane];
    }
    for (; i < row.count(); ++i) {
      const float scaled = row.logits()[i] / temperature;
      const int b = bucket(scaled);
      ++kept_[b], mass_[b] += RowLogits::weight(scaled, top_);
    }
  }

  static double mass_of(const Candidate* from, std::int64_t count, double top) {
    constexpr int width = lanes / 2;
    double total = 0;
    for (std::int64_t i = 0; i < count; i += width) {
      double x[width] = {};
      const int n = count - i < width ? static_cast<int>(count - i) : width;
      for (int j = 0; j < n; ++j) x[j] = static_cast<double>(from[i + j].value) - top;
      store(x, exp(load<vd>(x)));
      for (int j = 0; j < n; ++j) total += x[j];
    }
    return total;
  }

  double kept_mass() const {
    double total = 0;
    for (int b = 0; b < buckets; ++b) total += mass_[b];
    return total;
  }

  void keep_first(std::int64_t k) {
    std::int64_t passed = 0;
    for (int b = 0; b < buckets; ++b) {
      if (passed + kept_[b] >= k) {
        put_in_order(b);
        return cut(b, static_cast<std::int32_t>(k - passed));
      }
      passed += kept_[b];
    }
  }

  // Keeps the first that make up a share of a mass. False, and nothing is changed, where that hangs on the mass's
  // error.
  bool keep_mass(double share, Mass of) {
    const double target = share * of.total, margin = share * of.error;
    double passed = 0;
    bool any = false;  // the most likely token is always kept
    for (int b = 0; b < buckets; ++b) {
      if (kept_[b] == 0) continue;
      if (unclear(passed + mass_[b] - target, margin)) return false;
      if (passed + mass_[b] < target) {
        passed += mass_[b];
        any = true;
        continue;
      }
      put_in_order(b);
      std::int32_t kept = 0;
      for (; kept < kept_[b]; ++kept) {
        if (any && unclear(passed - target, margin)) return false;
        if (any && !(passed < target)) break;
        passed += RowLogits::weight(placed_[begin_[b] + kept].value, top_);
        any = true;
      }
      cut(b, kept);
      return true;
    }
    return true;
  }

  std::int64_t draw(double u) {
    double passed = 0;
    const double target = u * kept_mass();
    int last = 0;  // the largest is in the first bucket
    for (int b = 0; b < buckets; ++b) {
      if (kept_[b] == 0 || !(mass_[b] > 0)) continue;  // what may not be drawn has no mass
      last = b;
      if (passed + mass_[b] <= target) {
        passed += mass_[b];
        continue;
      }
      put_in_order(b);
      for (std::int32_t i = 0; i < kept_[b]; ++i) {
        const Candidate& c = placed_[begin_[b] + i];
        passed += RowLogits::weight(c.value, top_);
        if (passed > target) return c.id;
      }
    }
    // Sums of a bucket, in order or not, differ by their rounding: the last one of any weight.
    put_in_order(last);
    std::int32_t i = kept_[last] - 1;
    while (i > 0 && !(RowLogits::weight(placed_[begin_[last] + i].value, top_) > 0)) --i;
    return placed_[begin_[last] + i].id;
  }

  static bool unclear(double difference, double margin) {
    return margin > 0 && (difference < 0 ? -difference : difference) <= margin;
  }

 private:
  void clear(float top) {
    top_ = top, row_ = nullptr, looked_up_ = 0;
    std::memset(kept_, 0, buckets * 4);
    std::memset(ordered_, 0, buckets);
  }

  int bucket(float scaled) const {
    const float distance = (top_ - scaled) * buckets_per_unit;
    return distance < buckets - 1 ? static_cast<int>(distance) : buckets - 1;
  }

  void put_in_order(int b) {
    if (ordered_[b]) return;
    if (row_ != nullptr) look_up(b);
    order(placed_ + begin_[b], kept_[b], kept_[b]);
    ordered_[b] = true;
  }

  // The candidates of a bucket, behind those that were looked up before.
  void look_up(int b) {
    begin_[b] = looked_up_;
    const float edge = top_ - static_cast<float>(b + 1) / buckets_per_unit;
    const float least = b == buckets - 1 ? minus_infinity : edge - 1e-5f * __builtin_fabsf(edge) - 1e-5f;
    row_->each_from(least, temperature_, [&](float scaled, std::int32_t id) {
      if (bucket(scaled) == b) placed_[looked_up_++] = {scaled, id};
    });
  }

  // Keeps the first `count` of bucket b and nothing of the later ones.
  void cut(int b, std::int32_t count) {
    kept_[b] = count;
    mass_[b] = mass_of(placed_ + begin_[b], count, top_);
    for (int later = b + 1; later < buckets; ++later) kept_[later] = 0, mass_[later] = 0;
  }

  const RowLogits* row_ = nullptr;  // whose candidates are not placed yet
  float temperature_ = 1, top_ = 0;
  std::int32_t looked_up_ = 0;
  Candidate* placed_;
  std::int32_t *begin_, *kept_;
  double* mass_;
  bool* ordered_;
};

}  // namespace inflight::INFLIGHT_ISA
