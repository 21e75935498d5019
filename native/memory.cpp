#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace inflight {

constexpr std::size_t huge_page = 2u << 20;

Memory::Memory(std::size_t bytes) : bytes_(bytes) {
  const bool huge = bytes >= huge_page;
  mapped_ = bytes + (huge ? huge_page : 4096);
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  data_ = mapping_;
  if (huge) {
    const auto start = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = reinterpret_cast<void*>((start + huge_page - 1) / huge_page * huge_page);
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes / huge_page * huge_page, MADV_HUGEPAGE);  // a hint: without it all works, only slower
#endif
  }
}

Memory::~Memory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace inflight
