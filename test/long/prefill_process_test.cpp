// A prefill cut at any point, its state saved, and the rest read by a process of its own: the bits are those of one
// prefill. Every part runs in a process that was started for it, as `samba decode --save-state` and `--state` are.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/core/sha256.h"
#include "samba/generate/state_file.h"
#include "samba/numerics/generator.h"
#include "samba/verify/compare.h"
#include "samba/verify/slices.h"
#include "samba/verify/state_pieces.h"
#include "temporary_folder.h"

namespace samba {
namespace {

constexpr Index kLength = 257;

struct Model {
  std::unique_ptr<Executor> executor = make_executor("cpu", {1, ""});
  std::unique_ptr<SambaStack> stack;

  Model() {
    const StackConfig config = stack_config_from_json(nlohmann::json::parse(
        R"({"vocab": 40, "d_model": 32,
            "layers": [{"kind": "transformer", "n_heads": 2, "n_kv_heads": 1, "intermediate": 24, "window": 100},
                       {"kind": "mamba1"}, {"kind": "mamba2"}, {"kind": "mamba3"},
                       {"kind": "transformer", "n_heads": 4, "intermediate": 24}]})"));
    Generator generator(11);
    stack = std::make_unique<SambaStack>(*executor, config, generator, SambaStack::Use::inference);
  }
};

std::int32_t token(Index place) { return static_cast<std::int32_t>((place * place + 7 * place / 3) % 40); }

// Reads tokens up to `end`, from nothing or on from a file; leaves the state as a file.
void read_part(const std::string& from, Index end, const std::string& to) {
  Model model;
  Sequence sequence;
  if (!from.empty()) sequence = load_sequence(*model.stack, from);
  for (auto place = static_cast<Index>(sequence.tokens.size()); place < end; ++place) {
    sequence.tokens.push_back(token(place));
  }
  reserve(*model.stack, sequence, kLength);
  read_tokens(*model.stack, sequence);
  save_sequence(*model.stack, sequence, to);
}

// read_part in a new process of this program.
void read_elsewhere(const std::string& from, Index end, const std::string& to) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("SAMBA_PART_FROM", from.c_str(), 1);
    ::setenv("SAMBA_PART_END", std::to_string(end).c_str(), 1);
    ::setenv("SAMBA_PART_TO", to.c_str(), 1);
    ::execl("/proc/self/exe", "prefill_process_test", "[.part]", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
}

}  // namespace

TEST_CASE("one part of a prefill", "[.part]") {
  read_part(std::getenv("SAMBA_PART_FROM"), std::stol(std::getenv("SAMBA_PART_END")), std::getenv("SAMBA_PART_TO"));
}

TEST_CASE("a prefill cut at every point of 257 and read on in a new process leaves the state of the whole") {
  const TemporaryFolder folder;
  read_part("", kLength, folder / "whole");
  Model model;
  const Sequence whole = load_sequence(*model.stack, folder / "whole");
  for (Index cut = 0; cut <= kLength; ++cut) {
    INFO("cut at " << cut);
    const std::string first = cut > 0 ? (folder / "first").string() : "";
    if (cut > 0) read_elsewhere("", cut, first);
    read_elsewhere(first, kLength, folder / "second");
    const Sequence found = load_sequence(*model.stack, folder / "second");
    CHECK(found.tokens == whole.tokens);
    CHECK(bits_equal(found.logits, whole.logits));
    for (std::size_t layer = 0; layer < whole.state->layers(); ++layer) {
      CHECK(found.state->layer(layer).counters() == whole.state->layer(layer).counters());
      const ArrayMap mine = verify::held_pieces(found.state->layer(layer));
      for (const auto& [piece, array] : verify::held_pieces(whole.state->layer(layer))) {
        INFO("layer " << layer << ", " << piece);
        CHECK(!verify::first_difference(piece, mine.at(piece), array));
      }
    }
  }
}

}  // namespace samba
