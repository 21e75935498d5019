// Big zeroed buffers straight from the system: aligned to and backed by huge pages where the system has them.
#pragma once
#include <cstddef>

namespace inflight {

class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t bytes);  // throws std::bad_alloc
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace inflight
