// From logits to tokens: penalties, filters, one draw per row, log-probabilities. The rules are those of SamplingBatch
// in protocol/sampling.py, to the letter and the same for every instruction set.
//
// Knows that a vocabulary is long and what is kept of it short: nothing sorts a whole row. The largest of every 64
// logits bounds what top-k needs to look at; what remains is dropped into buckets by its distance from the largest, and
// only the buckets in which a cut or the draw falls are put in order.
#pragma once
#include <initializer_list>

#include "parallel.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t sample_block = 64;
constexpr int buckets = 2048, buckets_per_unit = 64;
constexpr float minus_infinity = -__builtin_inff();

struct Candidate {
  float value;
  std::int32_t id;
};

// Order of falling value, ties by rising id.
INLINE bool before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

INLINE void sift(Candidate* heap, std::int64_t root, std::int64_t count) {
  const Candidate moved = heap[root];
  for (std::int64_t child = 2 * root + 1; child < count; child = 2 * root + 1) {
    if (child + 1 < count && before(heap[child], heap[child + 1])) ++child;
    if (!before(moved, heap[child])) break;
    heap[root] = heap[child];
    root = child;
  }
  heap[root] = moved;
}

// The first `kept` of `count` candidates in order, at the front.
inline std::int64_t order(Candidate* all_of_them, std::int64_t count, std::int64_t kept) {
  if (kept > count) kept = count;
  if (kept == 0) return 0;
  for (std::int64_t i = kept / 2; i-- > 0;) sift(all_of_them, i, kept);  // the last in order on top
  for (std::int64_t i = kept; i < count; ++i) {
    if (!before(all_of_them[i], all_of_them[0])) continue;
    const Candidate out = all_of_them[0];
    all_of_them[0] = all_of_them[i];
    all_of_them[i] = out;
    sift(all_of_them, 0, kept);
  }
  for (std::int64_t i = kept; i-- > 1;) {
    const Candidate last = all_of_them[0];
    all_of_them[0] = all_of_them[i];
    all_of_them[i] = last;
    sift(all_of_them, 0, i);
  }
  return kept;
}

inline double uniform(std::uint64_t seed, std::uint32_t draw, std::uint32_t sample) {
  std::uint32_t c[4] = {draw, sample, 0, 0};
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<std::uint32_t>(p1);
    c[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<double>((static_cast<std::uint64_t>(c[1]) << 32 | c[0]) >> 11) * 0x1p-53;
}

// One row of logits and the memory to work on it.
class Row {
 public:
  static std::int64_t scratch_bytes(std::int64_t vocabulary) { return vocabulary * 28 + buckets * 24 + 65536; }

  Row(float* logits, std::int64_t vocabulary, char* scratch) : logits_(logits), count_(vocabulary) {
    blocks_ = (count_ + sample_block - 1) / sample_block;
    const auto take = [&](std::int64_t bytes) {
      char* at = scratch;
      scratch += (bytes + 63) / 64 * 64;
      return at;
    };
    tops_ = reinterpret_cast<float*>(take(blocks_ * 4));
    spare_ = reinterpret_cast<float*>(take(count_ * 4));
    masses_ = reinterpret_cast<double*>(take(blocks_ * 8));
    found_ = reinterpret_cast<Candidate*>(take(count_ * 8));
    placed_ = reinterpret_cast<Candidate*>(take(count_ * 8));
    begin_ = reinterpret_cast<std::int32_t*>(take((buckets + 1) * 4));
    kept_ = reinterpret_cast<std::int32_t*>(take(buckets * 4));
    mass_ = reinterpret_cast<double*>(take(buckets * 8));
    ordered_ = reinterpret_cast<bool*>(take(buckets));
  }

  void run(const Sampling& s, std::int64_t row) {
    look();
    const bool wants = s.want_logprobs[row];
    const bool changes = s.histories[row] != nullptr || s.allowed[row] != nullptr ||
                         s.bias_offsets[row + 1] > s.bias_offsets[row];
    double norm = 0;
    const float* untouched = logits_;
    if (wants) {
      norm = log_of_sum();
      alternatives(s.logprobs, row, norm);
      if (changes) {
        std::memcpy(spare_, logits_, count_ * 4);
        untouched = spare_;
      }
    }
    if (changes) penalise(s, row);
    const std::int64_t token = draw(s, row);
    s.token_ids[row] = static_cast<std::int32_t>(token);
    if (wants) s.logprobs.values[row] = static_cast<float>(static_cast<double>(untouched[token]) - norm);
  }

  // What `run` reports of a token, without drawing one.
  void score(std::int32_t token, const Logprobs& out, std::int64_t row) {
    look();
    const double norm = log_of_sum();
    alternatives(out, row, norm);
    out.values[row] = static_cast<float>(static_cast<double>(logits_[token]) - norm);
  }

 private:
  // Replaces NaN by −∞ and finds the largest of every block.
  void look() {
    for (std::int64_t b = 0; b < blocks_; ++b) look(b);
  }

  void look(std::int64_t block) {
    const std::int64_t first = block * sample_block, last = end(block);
    vf top = all(minus_infinity);
    std::int64_t i = first;
    for (; i + lanes <= last; i += lanes) {
      const vf x = load<vf>(logits_ + i), clean = x == x ? x : all(minus_infinity);
      store(logits_ + i, clean);
      top = max(clean, top);
    }
    float one = largest(top);
    for (; i < last; ++i) {
      if (logits_[i] != logits_[i]) logits_[i] = minus_infinity;
      if (logits_[i] > one) one = logits_[i];
    }
    tops_[block] = one;
  }

  std::int64_t end(std::int64_t block) const {
    return (block + 1) * sample_block < count_ ? (block + 1) * sample_block : count_;
  }

  std::int64_t top_block() const {
    std::int64_t best = 0;
    for (std::int64_t b = 1; b < blocks_; ++b)
      if (tops_[b] > tops_[best]) best = b;
    return best;
  }

  std::int64_t greedy() const {
    const std::int64_t block = top_block();
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

  // Weights of all logits: their sum, block by block in masses_.
  double total_mass(float temperature, double top) {
    double total = 0;
    for (std::int64_t b = 0; b < blocks_; ++b) {
      const std::int64_t last = end(b);
      std::int64_t i = b * sample_block;
      vd sums = {};
      const vf divisor = all(temperature);
      for (; i + lanes <= last; i += lanes) {
        const vf scaled = load<vf>(logits_ + i) / divisor;
        vf_half halves[2];
        std::memcpy(halves, &scaled, sizeof scaled);
        sums += exp(to_double(halves[0]) - top);
        sums += exp(to_double(halves[1]) - top);
      }
      double mass = sum(sums);
      for (; i < last; ++i) mass += weight(logits_[i] / temperature, top);
      masses_[b] = mass;
      total += mass;
    }
    return total;
  }

  double log_of_sum() {
    const double top = tops_[top_block()];
    return top + __builtin_log(total_mass(1.0f, top));
  }

  // A value that at least k logits (and few more) reach, from the largest of the blocks.
  float bound(std::int64_t k) {
    if (k > blocks_ / 2) return minus_infinity;
    for (std::int64_t b = 0; b < blocks_; ++b) found_[b] = {tops_[b], static_cast<std::int32_t>(b)};
    order(found_, blocks_, k);
    return found_[k - 1].value;
  }

  // Logits that divided by the temperature reach `least`, in that form → found_.
  std::int64_t gather(float least, float temperature) {
    // Compared before the division, with room for its rounding; then exactly.
    const float product = least * temperature;
    const float near = least == minus_infinity ? least : product - 1e-5f * __builtin_fabsf(product) - 1e-30f;
    std::int64_t n = 0;
    const auto take = [&](std::int64_t i) {
      const float scaled = logits_[i] / temperature;
      if (scaled >= least) found_[n++] = {scaled, static_cast<std::int32_t>(i)};
    };
    for (std::int64_t b = 0; b < blocks_; ++b) {
      if (tops_[b] < near) continue;
      std::int64_t i = b * sample_block;
      for (; i + lanes <= end(b); i += lanes)
        for (std::uint32_t bits = lanes_from(load<vf>(logits_ + i), near); bits != 0; bits &= bits - 1)
          take(i + __builtin_ctz(bits));
      for (; i < end(b); ++i) take(i);
    }
    return n;
  }

  void alternatives(const Logprobs& out, std::int64_t row, double norm) {
    std::int64_t wanted = out.wanted[row];
    if (wanted > out.width) wanted = out.width;
    if (wanted <= 0) return;
    std::int64_t n = gather(bound(wanted), 1.0f);
    n = order(found_, n, wanted);
    for (std::int64_t i = 0; i < n; ++i) {
      out.top_ids[row * out.width + i] = found_[i].id;
      out.top_values[row * out.width + i] = static_cast<float>(static_cast<double>(found_[i].value) - norm);
    }
  }

  // Who has no bit may not be drawn.
  void mask(const std::uint32_t* allowed) {
    for (std::int64_t word = 0; word * 32 < count_; ++word) {
      const std::int64_t first = word * 32, past = first + 32 < count_ ? first + 32 : count_;
      if (allowed[word] == 0xffffffffu) continue;
      for (std::int64_t i = first; i < past; ++i)
        if ((allowed[word] >> (i - first) & 1) == 0) logits_[i] = minus_infinity;
    }
    look();
  }

  void penalise(const Sampling& s, std::int64_t row) {
    if (s.allowed[row] != nullptr) mask(s.allowed[row]);
    for (std::int32_t i = s.bias_offsets[row]; i < s.bias_offsets[row + 1]; ++i) {
      logits_[s.bias_ids[i]] += s.bias_values[i];
      look(s.bias_ids[i] / sample_block);
    }
    const std::int32_t* history = s.histories[row];
    if (history == nullptr) return;
    // How often a token stands in the output, and whether it still waits for its penalties.
    constexpr std::uint32_t waiting = 1u << 31;
    auto* marks = reinterpret_cast<std::uint32_t*>(placed_);
    std::memset(marks, 0, count_ * 4);
    const std::int64_t length = s.history_lengths[row];
    for (std::int64_t i = 0; i < length; ++i) {
      if (history[i] < 0 || history[i] >= count_) continue;
      marks[history[i]] = (marks[history[i]] | waiting) + (i >= s.prompt_lengths[row] ? 1 : 0);
    }
    const float repetition = s.repetition_penalty[row];
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int32_t id = history[i];
      if (id < 0 || id >= count_ || (marks[id] & waiting) == 0) continue;
      marks[id] &= ~waiting;
      float x = logits_[id];
      if (repetition != 1.0f) x = x > 0 ? x / repetition : x * repetition;
      if (marks[id] > 0) {
        x -= s.frequency_penalty[row] * static_cast<float>(marks[id]);
        x -= s.presence_penalty[row];
      }
      logits_[id] = x;
    }
    look();
  }

  std::int64_t draw(const Sampling& s, std::int64_t row) {
    const std::int64_t best = greedy();
    const float temperature = s.temperature[row];
    if (!(temperature > 0)) return best;
    const float top = logits_[best] / temperature;
    if (!(top - top == 0)) return best;  // not finite
    const std::int64_t top_k = s.top_k[row];
    const float top_p = s.top_p[row], min_p = s.min_p[row];
    const double u = uniform(s.seed[row], s.draw_index[row], s.sample_index[row]);
    if (top_k <= 0 && top_p >= 1 && min_p <= 0) return draw_by_id(temperature, top, u, best);

    const bool cuts_mass = top_p < 1;
    double total = 0;  // of all that min-p and top-k leave
    std::int64_t n = 0;
    if (min_p > 0) {
      const double least = __builtin_log(static_cast<double>(min_p));
      const float about = static_cast<float>(top + least);
      const std::int64_t near = gather(about - 1e-5f * __builtin_fabsf(about) - 1e-5f, temperature);
      for (std::int64_t i = 0; i < near; ++i)
        if (static_cast<double>(found_[i].value) - static_cast<double>(top) >= least) found_[n++] = found_[i];
    } else if (top_k > 0 && top_k <= blocks_ / 2) {
      n = gather(bound(top_k) / temperature, temperature);
    } else {
      // Most of a vocabulary is far below the largest: try without it first.
      if (top_k <= 0) total = total_mass(temperature, top);
      for (const float distance : {6.0f, 9.0f, 12.0f, 16.0f, 24.0f, __builtin_inff()}) {
        n = gather(top - distance, temperature);
        if (top_k > 0 ? n >= top_k : mass_of(found_, n, top) >= static_cast<double>(top_p) * total) break;
      }
    }
    if (n == 0) return best;
    drop_into_buckets(n, top);
    if (top_k > 0) keep_first(top_k, top);
    if (cuts_mass) keep_mass(static_cast<double>(top_p), total > 0 ? total : kept_mass(), top);
    return draw_by_order(u, top);
  }

  std::int64_t draw_by_id(float temperature, double top, double u, std::int64_t best) {
    const double target = u * total_mass(temperature, top);
    double passed = 0;
    std::int64_t last = best;
    for (std::int64_t b = 0; b < blocks_; ++b) {
      if (passed + masses_[b] <= target) {
        passed += masses_[b];
        continue;
      }
      for (std::int64_t i = b * sample_block; i < end(b); ++i) {
        const double w = weight(logits_[i] / temperature, top);
        if (w > 0) last = i;
        passed += w;
        if (passed > target) return i;
      }
    }
    return last;
  }

  static int bucket(float scaled, float top) {
    const float distance = (top - scaled) * buckets_per_unit;
    return distance < buckets - 1 ? static_cast<int>(distance) : buckets - 1;
  }

  // found_ → placed_, by bucket; within one still by rising id.
  void drop_into_buckets(std::int64_t n, float top) {
    std::memset(kept_, 0, buckets * 4);
    std::memset(ordered_, 0, buckets);
    for (std::int64_t i = 0; i < n; ++i) ++kept_[bucket(found_[i].value, top)];
    begin_[0] = 0;
    for (int b = 0; b < buckets; ++b) begin_[b + 1] = begin_[b] + kept_[b], kept_[b] = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const int b = bucket(found_[i].value, top);
      placed_[begin_[b] + kept_[b]++] = found_[i];
    }
    for (int b = 0; b < buckets; ++b) {
      if (kept_[b] > 0) {
        sum_bucket(b, top);
      } else {
        mass_[b] = 0;
      }
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

  void sum_bucket(int b, double top) { mass_[b] = mass_of(placed_ + begin_[b], kept_[b], top); }

  double kept_mass() const {
    double total = 0;
    for (int b = 0; b < buckets; ++b) total += mass_[b];
    return total;
  }

  void put_in_order(int b) {
    if (ordered_[b]) return;
    order(placed_ + begin_[b], begin_[b + 1] - begin_[b], begin_[b + 1] - begin_[b]);
    ordered_[b] = true;
  }

  // Keeps the first `count` of bucket b and nothing of the later ones.
  void cut(int b, std::int32_t count, double top) {
    kept_[b] = count;
    sum_bucket(b, top);
    for (int later = b + 1; later < buckets; ++later) kept_[later] = 0, mass_[later] = 0;
  }

  void keep_first(std::int64_t k, double top) {
    std::int64_t passed = 0;
    for (int b = 0; b < buckets; ++b) {
      if (passed + kept_[b] >= k) {
        put_in_order(b);
        return cut(b, static_cast<std::int32_t>(k - passed), top);
      }
      passed += kept_[b];
    }
  }

  void keep_mass(double share, double total, double top) {
    double passed = 0;
    const double target = share * total;
    bool any = false;  // the most likely token is always kept
    for (int b = 0; b < buckets; ++b) {
      if (kept_[b] == 0) continue;
      if (passed + mass_[b] < target) {
        passed += mass_[b];
        any = true;
        continue;
      }
      put_in_order(b);
      std::int32_t kept = 0;
      for (; kept < kept_[b] && (passed < target || !any); ++kept) {
        passed += weight(placed_[begin_[b] + kept].value, top);
        any = true;
      }
      return cut(b, kept, top);
    }
  }

  std::int64_t draw_by_order(double u, double top) {
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
        passed += weight(c.value, top);
        if (passed > target) return c.id;
      }
    }
    // Sums of a bucket, in order or not, differ by their rounding: the last one of any weight.
    put_in_order(last);
    std::int32_t i = kept_[last] - 1;
    while (i > 0 && !(weight(placed_[begin_[last] + i].value, top) > 0)) --i;
    return placed_[begin_[last] + i].id;
  }

  float* logits_;
  std::int64_t count_, blocks_;
  float *tops_, *spare_;
  double *masses_, *mass_;
  Candidate *found_, *placed_;
  std::int32_t *begin_, *kept_;
  bool* ordered_;
};

// work(Row, row) for every row of logits; few and short ones are not worth waking anybody.
template <class Work>
void each_row(Pool& pool, float* logits, std::int64_t rows, std::int64_t vocabulary, const Work& work) {
  pool.reserve(Row::scratch_bytes(vocabulary));
  const auto one = [&](std::int64_t row, int worker) {
    char* scratch = static_cast<char*>(pool.own(worker));
    work(Row(logits + row * vocabulary, vocabulary, scratch), row);
  };
  parallel_for(pool, rows, one, rows * vocabulary < 1 << 15);
}

inline void sample_rows(Pool& pool, float* logits, std::int64_t rows, std::int64_t vocabulary, const Sampling& s) {
  each_row(pool, logits, rows, vocabulary, [&](Row&& one, std::int64_t row) { one.run(s, row); });
}

inline void score_rows(Pool& pool, float* logits, std::int64_t rows, std::int64_t vocabulary,
                       const std::int32_t* token_ids, const Logprobs& out) {
  each_row(pool, logits, rows, vocabulary, [&](Row&& one, std::int64_t row) { one.score(token_ids[row], out, row); });
}

}  // namespace inflight::INFLIGHT_ISA
