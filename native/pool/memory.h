// Big zeroed buffers straight from the system, on huge pages where the system has them.
//
// A model has hundreds of matrices of a megabyte or two. Each in a mapping of its own would be left with small pages
// wherever it is no multiple of a huge one, and reading it would take a fifth longer; so they stand side by side, in
// the order in which they are packed, which is that in which a step reads them.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace inflight {

class Mapping;

// Zeroed bytes, aligned to cache lines, that live as long as this does.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t bytes);  // in a mapping of its own; throws std::bad_alloc

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  friend class WeightArena;
  Memory(std::shared_ptr<Mapping> mapping, void* data, std::size_t bytes);

  std::shared_ptr<Mapping> mapping_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Hands out memory side by side. Not for several threads at once.
class WeightArena {
 public:
  // first_touch: is given all memory before anyone else writes to it.
  explicit WeightArena(std::function<void(char* data, std::size_t bytes)> first_touch = nullptr)
      : first_touch_(std::move(first_touch)) {}
  Memory take(std::size_t bytes);  // throws std::bad_alloc

 private:
  Memory untouched(std::size_t bytes);

  std::function<void(char*, std::size_t)> first_touch_;
  std::shared_ptr<Mapping> mapping_;  // what is being filled
  std::size_t filled_ = 0;
};

// Pages of a file's map, read-only, back to the system: who reads them again has them from the file again.
void give_back(const void* data, std::size_t bytes);

}  // namespace inflight
