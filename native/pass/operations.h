// The operations of a forward pass: those that a program records, by their names in Python.
//
// A new one is a function of a prepared pass and its arguments, in a file of its own, which is included and listed here.
// Files in rows/ have its kernel, too, for rows.cpp (rows/operation.h).
#pragma once
#include "rows/elementwise.h"
#include "rows/embed.h"
#include "rows/gather.h"
#include "rows/latent.h"
#include "rows/norm.h"
#include "rows/rope.h"
#ifndef INFLIGHT_ISA
#include "pass/attention.h"
#include "pass/products.h"
#include "pass/states.h"
#endif

#define INFLIGHT_OPERATIONS(each) \
  each(embed) \
  each(gather) \
  each(clear) \
  each(to_act) \
  each(add_positions) \
  each(add_token_types) \
  each(mean) \
  each(rms_norm) \
  each(layer_norm) \
  each(layer_norm_sum) \
  each(add) \
  each(scale) \
  each(soft_cap) \
  each(activate) \
  each(add_gated) \
  each(gate) \
  each(linear) \
  each(linear_residual) \
  each(linear_act) \
  each(gate_up) \
  each(experts) \
  each(by_head) \
  each(rope_and_write_kv) \
  each(rope_and_write_latent) \
  each(attention) \
  each(convolve) \
  each(convolve_gated) \
  each(delta_rule)
