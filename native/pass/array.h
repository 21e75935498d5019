// numpy arrays as the module takes them, by the buffer protocol: contiguous memory of a type and shape that is checked
// once.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "types.h"

namespace inflight {

namespace nb = nanobind;

[[noreturn]] inline void refuse(const std::string& sentence) { throw nb::value_error(sentence.c_str()); }

// Element types, by their letters in the buffer protocol.
enum class Kind { f32, f16, u16, i32, u32, u64, i8, u8, boolean, other };

inline Kind kind_of(const Py_buffer& view) {
  const char* format = view.format ? view.format : "B";
  if (*format == '<' || *format == '=' || *format == '@') ++format;
  if (format[0] == 0 || format[1] != 0) return Kind::other;
  switch (format[0]) {
    case 'f': return Kind::f32;
    case 'e': return Kind::f16;
    case 'H': return Kind::u16;
    case 'i': case 'l': return view.itemsize == 4 ? Kind::i32 : Kind::other;
    case 'I': case 'L': case 'Q': return view.itemsize == 4 ? Kind::u32 : Kind::u64;
    case 'b': return Kind::i8;
    case 'B': return Kind::u8;
    case '?': return Kind::boolean;
    default: return Kind::other;
  }
}

inline const char* name_of(Kind kind) {
  constexpr const char* names[] = {"float32", "float16", "uint16", "int32", "uint32",
                                   "uint64",  "int8",    "uint8",  "bool",  "another type"};
  return names[static_cast<int>(kind)];
}

constexpr std::int64_t any = -1;

// A C-contiguous array of a given type and shape, held for as long as this object lives.
class Array {
 public:
  Array(nb::handle object, const char* name, Kind kind, std::initializer_list<std::int64_t> shape,
        bool writable = false) {
    take(object, name);
    if (kind_of(view_) != kind)
      fail(name, std::string("must hold ") + name_of(kind) + ", not " + name_of(kind_of(view_)));
    bool fits = static_cast<std::size_t>(view_.ndim) == shape.size();
    for (int i = 0; fits && i < view_.ndim; ++i) {
      const std::int64_t wanted = shape.begin()[i];
      fits = wanted == any || view_.shape[i] == wanted;
    }
    if (!fits) {
      std::string wanted;
      for (const std::int64_t n : shape)
        wanted += (wanted.empty() ? "" : ", ") + (n == any ? "any" : std::to_string(n));
      fail(name, "must have shape [" + wanted + "], not [" + shape_text() + "]");
    }
    if (writable && view_.readonly) fail(name, "must be writable");
  }
  // A matrix of any of the types that weights and activations have.
  Array(nb::handle object, const char* name) {
    take(object, name);
    if (view_.ndim != 2) fail(name, "must have two dimensions, not shape [" + shape_text() + "]");
    const Kind kind = kind_of(view_);
    if (kind != Kind::f32 && kind != Kind::f16 && kind != Kind::u16)
      fail(name, std::string("must hold float32, float16 or uint16 (bf16), not ") + name_of(kind));
  }
  ~Array() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Array(const Array&) = delete;
  Array(Array&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }

  template <class T = void>
  T* data() const { return static_cast<T*>(view_.buf); }
  std::int64_t size(int axis) const { return view_.shape[axis]; }
  std::int64_t nbytes() const { return view_.len; }
  Kind kind() const { return kind_of(view_); }
  bool readonly() const { return view_.readonly; }
  SourceMatrix matrix() const {
    const Kind kind = kind_of(view_);
    const Source source = kind == Kind::f32 ? Source::f32 : kind == Kind::f16 ? Source::f16 : Source::bf16;
    return {view_.buf, size(0), source, nullptr, nullptr, nullptr, {}};
  }

 private:
  void take(nb::handle object, const char* name) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      view_.obj = nullptr;
      refuse(std::string(name) + " must be a numpy array");
    }
    if (!PyBuffer_IsContiguous(&view_, 'C')) fail(name, "must be contiguous");
  }
  // The destructor does not run when a constructor throws.
  [[noreturn]] void fail(const char* name, const std::string& why) {
    PyBuffer_Release(&view_);
    view_.obj = nullptr;
    refuse(std::string(name) + " " + why);
  }
  std::string shape_text() const {
    std::string text;
    for (int i = 0; i < view_.ndim; ++i) text += (i ? ", " : "") + std::to_string(view_.shape[i]);
    return text;
  }

  Py_buffer view_{};
};

}  // namespace inflight
