// The suffix index's side towards Python: token ids in, drafts out (suffix_index.h).
#pragma once
#include <nanobind/nanobind.h>

#include <limits>
#include <string>

#include "pass/array.h"
#include "text/suffix_index.h"

namespace inflight {

// token_ids: a list or a tuple. None is appended where one of them is no token.
inline void append_tokens(SuffixIndex& index, nb::handle token_ids) {
  if (!PyList_Check(token_ids.ptr()) && !PyTuple_Check(token_ids.ptr())) refuse("token ids must be a list or a tuple");
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(token_ids.ptr());
  if (count > index.room())
    refuse(std::to_string(count) + " tokens are too many for an index that takes " + std::to_string(index.room()) +
           " more in its life; begin another");
  PyObject** items = PySequence_Fast_ITEMS(token_ids.ptr());
  const auto token_of = [](PyObject* item) { return PyLong_CheckExact(item) ? PyLong_AsLongLong(item) : -1; };
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long long token_id = token_of(items[i]);
    if (token_id >= 0 && token_id <= std::numeric_limits<std::int32_t>::max()) continue;
    PyErr_Clear();
    refuse("token " + std::to_string(i) + " is no whole number from 0 to 2147483647");
  }
  for (Py_ssize_t i = 0; i < count; ++i) index.append(static_cast<std::int32_t>(token_of(items[i])));
}

// (token ids, chances), both as tuples.
inline nb::tuple propose_tokens(const SuffixIndex& index, const SuffixIndex* others, std::int32_t most) {
  if (others == &index) refuse("an index cannot be its own others");
  const Draft draft = index.propose(others, most);
  const Py_ssize_t count = static_cast<Py_ssize_t>(draft.token_ids.size());
  nb::object token_ids = nb::steal(PyTuple_New(count)), chances = nb::steal(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(token_ids.ptr(), i, PyLong_FromLong(draft.token_ids[i]));
    PyTuple_SET_ITEM(chances.ptr(), i, PyFloat_FromDouble(draft.chances[i]));
  }
  return nb::make_tuple(token_ids, chances);
}

}  // namespace inflight
