// The large parts of the published columns: batches of 1,024 rows, ragged batches, gradients of 8 rows of 64 tokens in
// pieces.
#include <algorithm>
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

Golden large_columns(const std::string& fixture, std::size_t cases) {
  Golden golden = {{"columns"}, cases};
  golden.options.id_part = fixture;
  golden.options.accept = [](const std::string& id, const std::string&) {
    return id.ends_with(".batchscale") || id.ends_with(".ragged") || id.ends_with(".batchgrad");
  };
  return golden;
}

const Golden kAll = large_columns("", 235);
const Golden kBase = large_columns("[base]", 47);

}  // namespace

TEST_CASE("the published digests of large columns hold on the cpu, on each instruction set") {
  check_golden_on_cpu(kAll, kBase);
}

TEST_CASE("the published digests of large columns hold on the reference executor, for one fixture") {
  check_golden(kBase, "reference");
}

TEST_CASE("the published digests of columns, small and large, hold on the GPU kernels, for one fixture") {
  const std::vector<std::string> devices = compiled_devices();
  if (std::find(devices.begin(), devices.end(), "gpu-host") == devices.end()) {
    WARN("skipped: the device gpu-host is not compiled in");
    return;
  }
  Golden golden = {{"columns"}, 187};
  golden.options.id_part = "[base]";
  check_golden(golden, "gpu-host", ExecutorOptions{2, "warp32"});
}

}  // namespace samba
