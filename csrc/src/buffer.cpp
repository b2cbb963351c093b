#include "forerun/buffer.h"

#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace forerun::cpu {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
#if defined(__linux__)
  // Streaming through 4 KB pages costs a fifth of one core's bandwidth in page walks.
  if (bytes >= kHugePage) {
    const std::size_t length = bytes + kHugePage;
    void* p = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    mapping_ = p;
    mapping_size_ = length;
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const std::size_t skip = (kHugePage - address % kHugePage) % kHugePage;
    data_ = static_cast<std::uint8_t*>(p) + skip;
    madvise(data_, bytes, MADV_HUGEPAGE);  // advice: refusal is harmless
    return;
  }
#endif
  data_ = static_cast<std::uint8_t*>(::operator new(bytes, std::align_val_t{kLine}));
  std::memset(data_, 0, bytes);
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapping_size_ = std::exchange(other.mapping_size_, 0);
  return *this;
}

void Buffer::give_back(std::size_t first, std::size_t bytes) noexcept {
#if defined(__linux__)
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = (first + page - 1) / page * page;
  const std::size_t end = (first + bytes) / page * page;
  if (mapping_ != nullptr && begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
#else
  (void)first;
  (void)bytes;
#endif
}

void Buffer::release() noexcept {
#if defined(__linux__)
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_size_);
    mapping_ = nullptr;
    data_ = nullptr;
    return;
  }
#endif
  if (data_ != nullptr) ::operator delete(data_, std::align_val_t{kLine});
  data_ = nullptr;
}

}  // namespace forerun::cpu
