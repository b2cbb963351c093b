// Memory for weights and panels: aligned to a cache line, on huge pages where it is large.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun::cpu {

class Buffer {
 public:
  Buffer() = default;
  // Zero-filled. Throws std::bad_alloc.
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Gives the whole pages of a part back to the system where that is possible: they take no memory
  // until they are written again, and what is read of the part until then is undefined.
  void give_back(std::size_t first, std::size_t bytes) noexcept;

 private:
  void release() noexcept;

  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  void* mapping_ = nullptr;  // set where the memory came from mmap
  std::size_t mapping_size_ = 0;
};

}  // namespace forerun::cpu
