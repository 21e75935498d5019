// The kernels that bf16.cpp, f32.cpp and int8.cpp compile: matrix products and attention for one way to hold numbers,
// in a translation unit of its own, so that an instruction set compiles only what it does better than others.
//
// Only headers that live in this namespace or declare plain functions may be included: an inline function shared with
// other files could be kept in the version compiled here, for instructions that the machine lacks.
#pragma once
#include "attention/attention.h"
#include "gemm/gemm.h"
#include "isa/probes.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

// Activations held as Value, weights as F reads them, keys and values of the cache as Keys and Values read them.
template <class Value, class F, class Keys = F, class Values = F>
constexpr ProductKernels products = {gemm<F, Value>, divide<Value, Keys, Values>, attention<Value, Keys, Values>,
                                     peak<Keys>};

}  // namespace inflight::INFLIGHT_ISA
