// Memory that is given back takes no room, and what lies beside it stays.
#include "check.h"
#include "forerun/buffer.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace forerun::cpu::test {
namespace {

#if defined(__linux__)
const auto kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
#else
constexpr std::size_t kPage = 4096;
#endif

// Pages of a buffer that are in memory.
std::size_t resident(const Buffer& buffer) {
  std::size_t count = buffer.size() / kPage;
#if defined(__linux__)
  std::vector<unsigned char> pages(count);
  CHECK(mincore(buffer.data(), buffer.size(), pages.data()) == 0, "mincore");
  count = 0;
  for (const unsigned char page : pages) count += page & 1;
#endif
  return count;
}

void test_give_back() {
  Buffer buffer(std::size_t{16} << 20);
  std::memset(buffer.data(), 7, buffer.size());
  CHECK(resident(buffer) == buffer.size() / kPage, "written");
  const std::size_t first = 3 * kPage + 5, bytes = std::size_t{8} << 20;
  buffer.give_back(first, bytes);
#if defined(__linux__)
  CHECK(resident(buffer) == (buffer.size() - bytes) / kPage + 1, "given back");
#endif
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    const bool beside = i < first || i >= first + bytes;
    CHECK(!beside || buffer.data()[i] == 7, "byte %zu", i);
  }
  Buffer small(100);
  std::memset(small.data(), 7, 100);
  small.give_back(0, 100);
  CHECK(small.data()[50] == 7, "memory that is not mapped");
}

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  forerun::cpu::test::test_give_back();
  std::printf("ok\n");
}
