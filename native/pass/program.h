// A model's forward pass as data: operations with the arguments that stay the same, run in one call.
//
// An operation is a function over a prepared pass; `operations.h` lists them. A program calls
// them in the order in which they were recorded, as one turn at the backend: the interpreter lock is released once, and
// the pool's workers, which spin for a while after each job, find the next one without being woken.
#pragma once
#include <nanobind/nanobind.h>

#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "pass/prepared_pass.h"

namespace inflight {

class Program {
 public:
  using Step = std::function<void(PreparedPass&)>;

  void append(Step step) { steps_.push_back(std::move(step)); }
  std::size_t size() const { return steps_.size(); }

  // Runs all operations. In a trace each is a call of its own, numbered on from the one that has begun.
  void run(PreparedPass& pass, RunInputs inputs) const {
    pass.run_all(std::move(inputs), [&] {
      Trace* trace = pass.backend().trace();
      const std::int64_t first = trace ? trace->call() : 0;
      for (std::size_t i = 0; i < steps_.size(); ++i) {
        if (trace) trace->begin_call(first + static_cast<std::int64_t>(i));
        steps_[i](pass);
      }
    });
  }

 private:
  std::vector<Step> steps_;
};

// How a program keeps an argument: objects that Python owns by their address, everything else by value.
template <class Given>
struct Argument {
  using Value = std::remove_cvref_t<Given>;
  static constexpr bool by_address = std::is_reference_v<Given> && !std::is_same_v<Value, std::string>;
  using Kept = std::conditional_t<by_address, std::remove_reference_t<Given>*, Value>;
  static Kept keep(Given given) {
    if constexpr (by_address) {
      return &given;
    } else {
      return given;
    }
  }
  static Given give(const Kept& kept) {
    if constexpr (by_address) {
      return *kept;
    } else {
      return kept;
    }
  }
};

// None for a null pointer, of what may be left out.
template <class Given>
constexpr auto annotation() {
  if constexpr (std::is_pointer_v<Given>) {
    return nb::arg().none();
  } else {
    return nb::arg();
  }
}

// The method of Program that records an operation, with its own arguments; those that Python owns live as long as the
// program.
template <class... Given>
void define_operation(nb::class_<Program>& type, const char* name, void (*operation)(PreparedPass&, Given...)) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    type.def(
        name,
        [operation](Program& program, Given... given) {
          program.append([operation, kept = std::tuple(Argument<Given>::keep(given)...)](PreparedPass& pass) {
            operation(pass, Argument<Given>::give(std::get<i>(kept))...);
          });
        },
        annotation<Given>()..., nb::keep_alive<1, i + 2>()...);
  }(std::index_sequence_for<Given...>{});
}

}  // namespace inflight
