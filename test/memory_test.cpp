// Arrays and scratch memory of the executors on the host: where they lie, and that the address sanitizer sees their
// ends.
#include "samba/kernels/memory.h"

#include <catch2/catch.hpp>
#include <cstdint>

#include "samba/backends/host_memory.h"
#include "samba/core/sanitizer.h"

using namespace samba;

namespace {

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 64 == 0; }

// Whether a sanitizer would end a program that reads the byte; false where there is none.
bool forbidden([[maybe_unused]] const void* byte) {
#if defined(SAMBA_ADDRESS_SANITIZER)
  return __asan_address_is_poisoned(byte) != 0;
#else
  return false;
#endif
}

}  // namespace

TEST_CASE("pieces of scratch memory are aligned, lie apart and are given back with their scope") {
  HostMemory memory;
  Workspace workspace(memory);
  float* const first = workspace.floats(5);
  float* again = nullptr;
  {
    const Workspace::Scope scope(workspace);
    again = workspace.floats(3);
    std::int16_t* const codes = workspace.codes(100);
    float* const large = workspace.floats(Index{1} << 19);  // more than the first block has
    CHECK((aligned(first) && aligned(again) && aligned(codes) && aligned(large)));
    CHECK(again >= first + 5);
    CHECK(reinterpret_cast<float*>(codes) >= again + 3);
    large[(1 << 19) - 1] = 1.0F;
  }
  CHECK(workspace.floats(3) == again);
}

TEST_CASE("under the address sanitizer the byte behind an array or a piece of scratch memory is forbidden") {
  HostMemory memory;
  for (const Index count : {1, 3, 16, 17, 1 << 20}) {
    INFO(count);
    DeviceArray<float> array(memory, count);
    Workspace workspace(memory);
    float* const piece = workspace.floats(count);
    float* const next = workspace.floats(1);
    CHECK_FALSE(forbidden(array.data() + count - 1));
    CHECK_FALSE(forbidden(piece + count - 1));
    CHECK_FALSE(forbidden(next));
    CHECK(forbidden(array.data() + count) == kAddressSanitizer);
    CHECK(forbidden(piece + count) == kAddressSanitizer);
    CHECK(forbidden(next + 1) == kAddressSanitizer);
  }
}

TEST_CASE("under the address sanitizer what a scope gave back is forbidden at the next piece") {
  HostMemory memory;
  Workspace workspace(memory);
  float* given_back = nullptr;
  {
    const Workspace::Scope scope(workspace);
    workspace.floats(64);
    given_back = workspace.floats(64);
  }
  workspace.floats(8);
  CHECK(forbidden(given_back) == kAddressSanitizer);
}
