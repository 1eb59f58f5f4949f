// Published columns, digests on which GPUs of three vendors and CPUs agree: the plain functions, the sessions, the MLP
// and the small parts of the blocks and stacks. The large batches are in test/long.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

bool is_large(const std::string& id) {
  return id.ends_with(".batchscale") || id.ends_with(".ragged") || id.ends_with(".batchgrad");
}

Golden small_columns(const std::string& fixture, std::size_t cases) {
  Golden golden = {{"columns"}, cases};
  golden.options.id_part = fixture;
  golden.options.accept = [](const std::string& id, const std::string&) { return !is_large(id); };
  return golden;
}

const Golden kAll = small_columns("", 695);
const Golden kBase = small_columns("[base]", 140);

}  // namespace

TEST_CASE("the published digests of small columns hold on the reference executor") { check_golden(kAll, "reference"); }

TEST_CASE("the published digests of small columns hold on the cpu, on each instruction set") {
  check_golden_on_cpu(kAll, kBase);
}

}  // namespace samba
