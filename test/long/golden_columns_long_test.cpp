// The large parts of the published columns: batches of 1,024 rows, ragged batches, gradients of 8 rows of 64 tokens in
// pieces.
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

}  // namespace samba
