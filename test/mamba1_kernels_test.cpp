// Twins of the kernels that make a Mamba-1 block: the convolution, the scan and their gradients, the norm's gradient.
#include <catch2/catch.hpp>

#include "mamba1_twins.h"

namespace samba {
namespace {

using namespace mamba1_twins;

constexpr Draw kKinds[] = {Draw::normal, Draw::mixed, Draw::small};

// Lanes with and without a rest, one and two leaves of channels, segments of 16 tokens, leaves of 128 tokens.
constexpr Size kSizes[] = {{1, 1, 1}, {2, 5, 3}, {1, 33, 8}, {2, 16, 17}, {1, 130, 4}, {1, 17, 66}};

}  // namespace

TEST_CASE("the convolution and its window have the reference's bits, cut out of a wider matrix") {
  Draws draws(41);
  for (const Draw kind : kKinds) {
    for (const Size& size : kSizes) {
      for (const bool windowed : {false, true}) {
        INFO("tokens " << size.tokens << ", channels " << size.d_model);
        const Index channels = size.d_model, stride = channels + 3, rows = size.batch * size.tokens;
        const Values x = draws.values(rows * stride, kind), weight = draws.values(channels * 4, kind);
        const Values bias = draws.values(channels, kind), window = draws.values(size.batch * channels * 4, Draw::mixed);
        check_twins([&](Executor& executor) {
          const ConvCall call{size.batch, size.tokens,   channels,    x.data() + 1,
                              stride,     weight.data(), bias.data(), windowed ? window.data() : nullptr};
          Results r = {unwritten(rows * channels), unwritten(rows * channels), unwritten(rows * channels), window};
          executor.conv().conv_forward(call, r[0].data(), r[1].data());
          executor.conv().conv_forward(call, nullptr, r[2].data());
          executor.conv().update_window(call, r[3].data());
          CHECK(bits_equal(r[1], r[2]));
          return r;
        });
      }
    }
  }
}

TEST_CASE("the window holds the last four inputs whatever the length of the calls") {
  for (const auto& executor : twin_executors()) {
    for (const Index tokens : {1, 2, 3, 4, 5, 9}) {
      Draws draws(42);
      const Values x = draws.values(tokens * 3, Draw::mixed);
      Values window = draws.values(3 * 4, Draw::mixed);
      std::vector<float> want;
      for (Index d = 0; d < 3; ++d) {
        std::vector<float> sequence;
        for (Index j = 0; j < 4; ++j) sequence.push_back(window[d * 4 + j]);
        for (Index t = 0; t < tokens; ++t) sequence.push_back(x[t * 3 + d]);
        want.insert(want.end(), sequence.end() - 4, sequence.end());
      }
      executor->conv().update_window({1, tokens, 3, x.data(), 3, nullptr, nullptr, nullptr}, window.data());
      INFO("tokens " << tokens);
      CHECK(bits_equal(window, want));
    }
  }
}

TEST_CASE("the scan has the reference's bits, fresh and continued") {
  Draws draws(43);
  for (const Draw kind : kKinds) {
    for (const Size& size : kSizes) {
      Inputs in(draws, size, kind);
      for (const bool carried : {false, true}) {
        INFO("tokens " << size.tokens << ", d_model " << size.d_model << ", carried " << carried);
        check_twins([&](Executor& executor) {
          in.run(executor, carried);
          return Results{in.a, in.gate, in.delta, in.y, in.skip, in.after};
        });
      }
    }
  }
}

TEST_CASE("the gradients of scan, gate and convolution have the reference's bits") {
  Draws draws(44);
  for (const Draw kind : kKinds) {
    for (const Size& size : kSizes) {
      INFO("tokens " << size.tokens << ", d_model " << size.d_model);
      Inputs in(draws, size, kind);
      check_twins([&](Executor& executor) { return gradients(executor, in); });
    }
  }
}

TEST_CASE("the norm's gradient of Mamba-1 and Mamba-2 has the reference's bits, with and without a residual") {
  Draws draws(45);
  for (const Draw kind : kKinds) {
    for (const Index width : {1, 7, 32, 70}) {
      for (const bool residual : {false, true}) {
        constexpr Index kRows = 21;
        INFO("width " << width << ", residual " << residual);
        const Values x = draws.values(kRows * width, kind), weight = draws.values(width, kind);
        const Values dy = draws.values(kRows * width, kind), carried = draws.values(kRows * width, kind);
        check_twins([&](Executor& executor) {
          Results r = {unwritten(kRows * width), unwritten(kRows), unwritten(kRows * width), unwritten(width),
                       unwritten(kRows)};
          executor.norm().mamba_norm_forward(kRows, width, 1e-5F, x.data(), weight.data(), r[0].data(), r[1].data());
          executor.norm().mamba12_norm_backward(kRows, width, 1e-5F, x.data(), weight.data(), r[1].data(), dy.data(),
                                                residual ? carried.data() : nullptr, r[2].data(), r[3].data(),
                                                r[4].data());
          return r;
        });
      }
    }
  }
}

}  // namespace samba
