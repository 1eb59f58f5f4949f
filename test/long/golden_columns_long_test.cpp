// The large parts of the published columns: batches of 1,024 rows, ragged batches, gradients of 8 rows of 64 tokens in
// pieces.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

Golden large_columns() {
  Golden golden = {{"columns"}, 105};
  golden.options.accept = [](const std::string& id, const std::string&) {
    return id.ends_with(".batchscale") || id.ends_with(".ragged") || id.ends_with(".batchgrad");
  };
  return golden;
}

// On the reference executor one fixture stands for all.
Golden large_columns_of_base() {
  Golden golden = large_columns();
  golden.cases = 21;
  golden.options.id_part = "[base]";
  return golden;
}

}  // namespace

TEST_CASE("the published digests of large columns hold on the cpu, on each instruction set") {
  for_each_instruction_set([](const ExecutorOptions& options) { check_golden(large_columns(), "cpu", options); });
}

TEST_CASE("the published digests of large columns hold on the reference executor") {
  check_golden(large_columns_of_base(), "reference");
}

}  // namespace samba
