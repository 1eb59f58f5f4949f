// Twins of the kernels that make a Mamba-2 block: the chunked core and its gradients.
#include <catch2/catch.hpp>

#include "mamba2_twins.h"

namespace samba {
namespace {

using namespace mamba2_twins;

// One row and several; groups of rows with a rest; both halves of a chunk; chunks that end, begin and are complete.
constexpr Size kSizes[] = {{1, 1, 32, 0},   {2, 5, 64, 0},    {1, 3, 32, 126}, {1, 1, 64, 254},
                           {1, 2, 32, 254}, {1, 131, 32, 40}, {2, 7, 32, 252}};
constexpr Size kFreshSizes[] = {{1, 1, 32, 0}, {2, 5, 96, 0}, {1, 131, 32, 0}, {1, 258, 64, 0}};

}  // namespace

TEST_CASE("the chunked core has the reference's bits, fresh and continued, with every stage") {
  Draws draws(51);
  for (const Draw kind : {Draw::normal, Draw::mixed, Draw::small}) {
    for (const Size& size : kSizes) {
      Inputs in(draws, size, kind);
      for (const auto state : {Inputs::State::fresh, Inputs::State::carried}) {
        INFO("tokens " << size.tokens << ", d_model " << size.d_model << ", buffered " << size.buffered << ", carried "
                       << (state == Inputs::State::carried));
        check_twins([&](Executor& executor) {
          in.run(executor, state, Inputs::Extra::all);
          return Results{in.dt,  in.dacs,   in.decay, in.pass_states, in.chunk_states, in.skip, in.gate,
                         in.x_d, in.y_diag, in.y_off, in.y,           in.h_last,       in.after};
        });
      }
    }
  }
}

TEST_CASE("the chunked core without stages and report gives the same outputs and state") {
  Draws draws(52);
  for (const Size& size : kSizes) {
    Inputs in(draws, size, Draw::normal);
    for (const auto state : {Inputs::State::fresh, Inputs::State::carried}) {
      for (const auto& executor : twin_executors()) {
        in.run(*executor, state, Inputs::Extra::all);
        const Values gate = in.gate, after = in.after;
        in.run(*executor, state, Inputs::Extra::none);
        CHECK(bits_equal(in.gate, gate));
        CHECK(bits_equal(in.after, after));
      }
    }
  }
}

TEST_CASE("step sizes are clamped in the total order of their bits") {
  const float limits[][2] = {{0.0F, kInfinity}, {-0.0F, 0.0F},   {0.0F, -0.0F},
                             {0.5F, 0.1F},      {-1.0F, -0.25F}, {1e-40F, 1.0F}};
  Draws draws(53);
  Inputs in(draws, {1, 4, 96, 0}, Draw::normal);
  for (Index t = 0; t < 4; ++t) {
    in.in_proj[t * in.call.width() + mamba2::dt_column(96)] = -200.0F;  // softplus +0
  }
  for (const auto& [low, high] : limits) {
    in.call.dt_low = low;
    in.call.dt_high = high;
    INFO("limits " << low << ", " << high);
    check_twins([&](Executor& executor) { return gradients(executor, in); });
    check_twins([&](Executor& executor) {
      in.run(executor, Inputs::State::fresh, Inputs::Extra::none);
      return Results{in.dt, in.gate};
    });
  }
}

TEST_CASE("the gradients of the core, the gate and the convolution have the reference's bits") {
  Draws draws(54);
  for (const Draw kind : {Draw::normal, Draw::mixed, Draw::small}) {
    for (const Size& size : kFreshSizes) {
      if (size.tokens > kChunk && kind == Draw::small) continue;
      INFO("tokens " << size.tokens << ", d_model " << size.d_model);
      Inputs in(draws, size, kind);
      check_twins([&](Executor& executor) { return gradients(executor, in); });
    }
  }
}

}  // namespace samba
