// Arguments of operations besides packed weights: activations, vectors of numbers, tables of cosines and sines, names
// of activation functions. Types and sizes are known, so that an operation compares a few numbers.
#pragma once
#include <nanobind/nanobind.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "pass/array.h"
#include "types.h"

namespace inflight {

// The numbers of a norm.
struct Vector {
  explicit Vector(nb::handle values) : array(values, "a vector", Kind::f32, {any}) {}
  Array array;
};

// Those of a vector, or null.
inline const float* numbers(const Vector* vector) { return vector ? vector->array.data<const float>() : nullptr; }

// Cosines and sines of positions, and maybe what their queries are multiplied by.
struct RopeTable {
  RopeTable(nb::handle cos_, nb::handle sin_, nb::handle q_scale_)
      : cos(cos_, "cos", Kind::f32, {any, any}), sin(sin_, "sin", Kind::f32, {cos.size(0), cos.size(1)}) {
    if (!q_scale_.is_none())
      q_scale.emplace(q_scale_, "q_scale", Kind::f32, std::initializer_list<std::int64_t>{cos.size(0)});
  }
  Array cos, sin;
  std::optional<Array> q_scale;
};

// Memory of numpy's for rows of numbers. rows: those that were written last.
struct Activation {
  explicit Activation(nb::object object_)
      : object(object_), array(object_, "an activation"), kind(array.kind()), capacity(array.size(0)),
        columns(array.size(1)), rows(capacity) {}

  nb::object object;
  Array array;
  Kind kind;
  std::int64_t capacity, columns, rows;
};

inline void expect(const Activation& a, const char* name, Kind kind, std::int64_t columns) {
  if (a.kind == kind && a.columns == columns) return;
  refuse(std::string(name) + " must hold " + name_of(kind) + " in rows of " + std::to_string(columns) + ", not " +
         name_of(a.kind) + " in rows of " + std::to_string(a.columns));
}

// `out` is about to be written.
inline void begin(Activation& out, Kind kind, std::int64_t columns, std::int64_t rows) {
  expect(out, "out", kind, columns);
  if (out.array.readonly()) refuse("out must be writable");
  if (out.capacity < rows)
    refuse("out must have room for " + std::to_string(rows) + " rows, not for " + std::to_string(out.capacity));
  out.rows = rows;
}

// The same of an operation that writes either format.
inline Format begin_as_held(Activation& out, std::int64_t columns, std::int64_t rows, Format act) {
  const Format held = out.kind == Kind::f32 ? Format::f32 : act;
  begin(out, held == Format::f32 ? Kind::f32 : Kind::u16, columns, rows);
  return held;
}

inline Nonlinearity nonlinearity_of(const std::string& name) {
  if (name == "silu") return Nonlinearity::silu;
  if (name == "gelu_tanh") return Nonlinearity::gelu;
  if (name == "gelu") return Nonlinearity::gelu_erf;
  if (name == "relu") return Nonlinearity::relu;
  if (name == "relu2") return Nonlinearity::relu2;
  if (name == "tanh") return Nonlinearity::tanh;
  if (name == "xielu") return Nonlinearity::xielu;
  refuse("there is no activation function " + name + "; there are silu, gelu, gelu_tanh, relu, relu2, tanh and xielu");
}

}  // namespace inflight
