// Rows of an activation picked out, and means of ranges of them.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "rows/operation.h"

#ifdef INFLIGHT_ISA

namespace inflight::INFLIGHT_ISA {

// out[i] = the mean of rows [starts[i], ends[i]) of x, added up in their order.
inline void mean(Pool& pool, const float* x, const std::int32_t* starts, const std::int32_t* ends,
                 std::int64_t count, std::int64_t width, float* out) {
  parallel_rows(pool, count, count * width * 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t s = first; s < last; ++s) {
      const float inverse = 1.0f / static_cast<float>(ends[s] - starts[s]);
      std::int64_t i = 0;
      for (; i + lanes <= width; i += lanes) {
        vf total{};
        for (std::int64_t t = starts[s]; t < ends[s]; ++t) total += load<vf>(x + t * width + i);
        store(out + s * width + i, total * inverse);
      }
      for (; i < width; ++i) {
        float total = 0;
        for (std::int64_t t = starts[s]; t < ends[s]; ++t) total += x[t * width + i];
        out[s * width + i] = total * inverse;
      }
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA

#else

namespace inflight {

// The run's places.
inline void gather(PreparedPass& pass, const Activation& x, Activation& out) {
  const std::vector<std::int64_t>& places = pass.inputs().places;
  expect(x, "x", Kind::f32, out.columns);
  begin(out, Kind::f32, x.columns, static_cast<std::int64_t>(places.size()));
  const TracedCall traced(pass.backend().trace());
  auto* to = out.array.data<float>();
  for (const std::int64_t place : places) {
    if (place < 0 || place >= x.rows) refuse("there is no row " + std::to_string(place) + " to gather");
    std::memcpy(to, x.array.data<float>() + place * x.columns, x.columns * sizeof(float));
    to += x.columns;
  }
}

// Of the run's ranges.
inline void mean(PreparedPass& pass, const Activation& x, Activation& out) {
  expect(x, "x", Kind::f32, out.columns);
  const std::vector<std::int32_t>&from = pass.inputs().firsts, &to = pass.inputs().ends;
  const auto count = static_cast<std::int64_t>(from.size());
  for (std::int64_t i = 0; i < count; ++i)
    if (from[i] < 0 || from[i] >= to[i] || to[i] > x.rows) refuse("a mean is of one row of x or more");
  begin(out, Kind::f32, x.columns, count);
  pass.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.mean(pool, x.array.data<float>(), from.data(), to.data(), count, x.columns, out.array.data<float>());
  });
}

}  // namespace inflight

#endif
