#include "pool/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace inflight {

namespace {

constexpr std::size_t huge_page = 2u << 20, arena_bytes = 32 * huge_page, line = 64;

std::size_t up_to(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// Pages from the system, none of which takes memory before it is touched.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) {
    const bool huge = bytes >= huge_page;
    bytes_ = up_to(bytes + (bytes == 0), huge ? huge_page : 4096);
    mapped_ = bytes_ + (huge ? huge_page : 0);
    pages_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages_ == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(pages_);
    if (!huge) return;
    data_ += up_to(reinterpret_cast<std::uintptr_t>(pages_), huge_page) - reinterpret_cast<std::uintptr_t>(pages_);
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes_, MADV_HUGEPAGE);  // a hint: without it all works, only slower
#endif
  }
  ~Mapping() { munmap(pages_, mapped_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* pages_;
  std::size_t mapped_;
  char* data_;
  std::size_t bytes_;
};

Memory::Memory(std::size_t bytes)
    : mapping_(std::make_shared<Mapping>(bytes)), data_(mapping_->data()), bytes_(bytes) {}

Memory::Memory(std::shared_ptr<Mapping> mapping, void* data, std::size_t bytes)
    : mapping_(std::move(mapping)), data_(data), bytes_(bytes) {}

Memory WeightArena::take(std::size_t bytes) {
  Memory memory = untouched(bytes);
  if (first_touch_ != nullptr) first_touch_(static_cast<char*>(memory.data()), memory.bytes());
  return memory;
}

Memory WeightArena::untouched(std::size_t bytes) {
  if (bytes >= arena_bytes) return Memory(bytes);
  if (mapping_ == nullptr || filled_ + bytes > mapping_->bytes()) {
    mapping_ = std::make_shared<Mapping>(arena_bytes);
    filled_ = 0;
  }
  Memory memory(mapping_, mapping_->data() + filled_, bytes);
  filled_ += up_to(bytes, line);
  return memory;
}

void give_back(const void* data, std::size_t bytes) {
  const std::size_t in_page = reinterpret_cast<std::uintptr_t>(data) % 4096;
  madvise(const_cast<char*>(static_cast<const char*>(data)) - in_page, bytes + in_page, MADV_DONTNEED);
}

}  // namespace inflight
