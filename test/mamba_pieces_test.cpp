// Long prefills of the Mamba blocks run in pieces; a call that records stages runs as one.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/blocks/mamba1/mamba1_block.h"
#include "samba/blocks/mamba2/mamba2_block.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/blocks/mamba_pieces.h"
#include "samba/numerics/philox.h"

namespace samba {
namespace {

constexpr Index kModel = 32;
using Floats = std::vector<float>;

Floats draw(std::uint32_t stream, Index count, float mean, float deviation) {
  Floats values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = stream_normal(47, stream, i, mean, deviation);
  return values;
}

std::unique_ptr<Block> make_block(Executor& executor, const std::string& kind) {
  if (kind == "mamba1") return std::make_unique<Mamba1Block>(executor, kModel);
  if (kind == "mamba2") return std::make_unique<Mamba2Block>(executor, kModel);
  return std::make_unique<Mamba3Block>(executor, kModel);
}

struct Ignored final : StageRecorder {
  void record(std::string_view, const Shape&, const float*) override {}
};

struct Fixture {
  explicit Fixture(const std::string& kind)
      : executor(make_executor("cpu", {.threads = 2, .instruction_set = ""})),
        block(make_block(*executor, kind)),
        workspace(executor->memory()) {
    std::vector<WeightView> views;
    for (const WeightSpec& spec : block->weight_specs()) {
      const bool matrix = spec.name.find("_proj.weight") != std::string::npos;
      const auto stream = static_cast<std::uint32_t>(weights.size());
      weights.push_back(draw(stream, element_count(spec.shape), matrix ? 0.0F : 0.5F, 0.2F));
      views.emplace_back(weights.back().data());
    }
    block->bind_weights(views);
  }

  // A state whose buffers hold drawn values in every row, in use or not.
  std::unique_ptr<BlockState> used_state(Index tokens) {
    std::unique_ptr<BlockState> state = block->allocate_state(1, 0);
    ArrayMap pieces = state->pieces();
    std::uint32_t stream = 100;
    ConstArrayMap views;
    for (auto& [name, array] : pieces) {
      const Floats values = draw(stream++, array.size(), 0.0F, 0.5F);
      std::copy(values.begin(), values.end(), array.floats().begin());
      views.emplace(name, array);
    }
    state->set(views, {});
    if (tokens > 0) run(*state, tokens, 7, nullptr);
    return state;
  }

  Floats run(BlockState& state, Index length, std::uint32_t stream, StageRecorder* stages) {
    const Floats x = draw(stream, length * kModel, 0.0F, 1.0F);
    Floats y(x.size());
    block->forward(1, length, x.data(), y.data(), &state, workspace, stages);
    return y;
  }

  std::unique_ptr<Executor> executor;
  std::unique_ptr<Block> block;
  Workspace workspace;
  std::vector<Floats> weights;
};

TEST_CASE("a prefill in pieces leaves the outputs and every byte of the state that the call as one leaves") {
  for (const std::string kind : {"mamba1", "mamba2", "mamba3"}) {
    Fixture fixture(kind);
    for (const Index before : {0, 40, 64}) {
      for (const Index length : {kMambaPiece - 12, kMambaPiece + 1, 2 * kMambaPiece, 2 * kMambaPiece + 77}) {
        INFO(kind << ", " << length << " tokens after " << before);
        const std::unique_ptr<BlockState> whole = fixture.used_state(before), pieces = whole->clone();
        Ignored ignored;
        const Floats want = fixture.run(*whole, length, 8, &ignored);
        CHECK(bits_equal(fixture.run(*pieces, length, 8, nullptr), want));
        CHECK(pieces->counters() == whole->counters());
        const ArrayMap left = pieces->pieces();
        for (const auto& [name, array] : whole->pieces()) {
          INFO(name);
          CHECK(bits_equal(left.at(name).floats(), array.floats()));
        }
      }
    }
  }
}

TEST_CASE("all pieces but the last end where a chunk ends") {
  Index tokens = 200;
  std::vector<Index> counts;
  over_pieces(2 * kMambaPiece, tokens, [&](Index first, Index count) {
    CHECK(first == tokens - 200);
    tokens += count;
    counts.push_back(count);
  });
  CHECK(counts == std::vector<Index>{kMambaPiece - 200, kMambaPiece, 200});
}

}  // namespace
}  // namespace samba
