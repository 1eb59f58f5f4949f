#include <catch2/catch.hpp>

#include <algorithm>

#include "kernel_twins.h"
#include "samba/kernels/extended_gradients.h"

namespace samba {

namespace {

constexpr Draw kKinds[] = {Draw::normal, Draw::mixed, Draw::small, Draw::tiny};

}  // namespace

TEST_CASE("norms give the reference's bits for any number of rows and columns") {
  Draws draws(5);
  const Index shapes[][2] = {{1, 1}, {1, 130}, {2, 33}, {3, 64}, {5, 7}, {15, 32}, {17, 65}, {40, 128}, {261, 96}};
  const float eps_values[] = {0.0F, 1e-5F, 1e-40F};
  for (const auto& shape : shapes) {
    const Index rows = shape[0], width = shape[1];
    for (const Draw kind : kKinds) {
      const float eps = kind == Draw::small ? 1e-40F : eps_values[draws.below(3)];
      INFO(rows << " x " << width << ", eps " << eps << ", kind " << static_cast<int>(kind));
      const Values x = draws.values(rows * width, kind), dy = draws.values(rows * width, kind);
      const Values weight = draws.values(width, kind), bias = draws.values(width, kind);
      check_twins([&](Executor& executor) {
        NormKernels& norm = executor.norm();
        Results r(8, Values(rows * width));
        Results row_values(4, Values(rows));
        Results column_values(4, Values(width));
        norm.rms_norm_forward(rows, width, eps, false, x.data(), weight.data(), r[0].data(), row_values[0].data(),
                              row_values[1].data());
        norm.rms_norm_forward(rows, width, eps, true, x.data(), weight.data(), r[1].data(), nullptr, nullptr);
        norm.rms_norm_backward(rows, width, eps, x.data(), weight.data(), dy.data(), r[2].data(),
                               column_values[0].data(), row_values[2].data());
        r[3] = dy;
        norm.rms_norm_backward(rows, width, eps, x.data(), weight.data(), r[3].data(), r[3].data(),
                               column_values[1].data(), nullptr);
        norm.layer_norm_block(rows, width, eps, x.data(), weight.data(), bias.data(), r[4].data(),
                              row_values[3].data());
        norm.layer_norm_block(rows, width, eps, x.data(), weight.data(), nullptr, r[5].data(), nullptr);
        norm.layer_norm_forward(rows, width, eps, x.data(), weight.data(), bias.data(), r[6].data());
        norm.layer_norm_backward(rows, width, eps, x.data(), weight.data(), dy.data(), r[7].data(),
                                 column_values[2].data(), column_values[3].data());
        r.insert(r.end(), row_values.begin(), row_values.end());
        r.insert(r.end(), column_values.begin(), column_values.end());
        r.emplace_back(rows * width);
        norm.layer_norm_forward(rows, width, eps, x.data(), nullptr, nullptr, r.back().data());
        r.emplace_back(rows * width);
        norm.layer_norm_backward(rows, width, eps, x.data(), nullptr, dy.data(), r.back().data(), nullptr, nullptr);
        return r;
      });
      const auto gradients_of_blocks = [&](Executor& executor) {
        auto& extended = dynamic_cast<NormGradients&>(executor.norm());
        Results r;
        for (const bool with_bias : {false, true}) {
          r.push_back(dy);
          Values d_weight(width), d_bias(width);
          std::fill(d_bias.data(), d_bias.data() + width, 0.0F);
          extended.layer_norm_block_backward(rows, width, eps, x.data(), weight.data(), r.back().data(),
                                             r.back().data(), d_weight.data(), with_bias ? d_bias.data() : nullptr);
          r.insert(r.end(), {d_weight, d_bias});
        }
        return r;
      };
      check_twins(gradients_of_blocks);
    }
  }
}

TEST_CASE("the gradient of a norm over heads gives the reference's bits; of one head it is that of the plain norm") {
  Draws draws(8);
  const Index shapes[][3] = {{1, 1, 1}, {1, 3, 130}, {5, 2, 7}, {17, 4, 16}, {131, 3, 8}, {200, 1, 33}};
  for (const auto& [rows, heads, width] : shapes) {
    for (const Draw kind : kKinds) {
      INFO(rows << " x " << heads << " x " << width << ", kind " << static_cast<int>(kind));
      const Index n = rows * heads * width;
      const Values x = draws.values(n, kind), dy = draws.values(n, kind), weight = draws.values(width, kind);
      const auto gradients = [&, rows = rows, heads = heads, width = width](Executor& executor) {
        NormKernels& norm = executor.norm();
        auto& extended = dynamic_cast<NormGradients&>(norm);
        Results r;
        for (const bool offset : {false, true}) {
          r.push_back(dy);
          Values d_weight(width);
          extended.rms_norm_heads_backward(rows, heads, width, 1e-5F, offset, x.data(), weight.data(), r.back().data(),
                                           r.back().data(), d_weight.data());
          r.push_back(d_weight);
        }
        if (heads == 1) {
          Values dx(n), d_weight(width);
          norm.rms_norm_backward(rows, width, 1e-5F, x.data(), weight.data(), dy.data(), dx.data(), d_weight.data(),
                                 nullptr);
          CHECK(bits_equal(r[0], dx));
          CHECK(bits_equal(r[1], d_weight));
        }
        return r;
      };
      check_twins(gradients);
    }
  }
}

TEST_CASE("the Mamba norm gives the reference's bits") {
  Draws draws(6);
  const Index shapes[][2] = {{1, 32}, {2, 64}, {19, 32}, {33, 160}, {300, 96}};
  for (const auto& shape : shapes) {
    const Index rows = shape[0], width = shape[1];
    for (const Draw kind : kKinds) {
      INFO(rows << " x " << width << ", kind " << static_cast<int>(kind));
      const Values x = draws.values(rows * width, kind), dy = draws.values(rows * width, kind);
      const Values residual = draws.values(rows * width, kind), weight = draws.values(width, kind);
      check_twins([&](Executor& executor) {
        Values y(rows * width), sumsq(rows), dx(rows * width), d_weight(width);
        executor.norm().mamba_norm_forward(rows, width, 1e-5F, x.data(), weight.data(), y.data(), sumsq.data());
        executor.norm().mamba_norm_backward(rows, width, 1e-5F, x.data(), weight.data(), sumsq.data(), dy.data(),
                                            residual.data(), dx.data(), d_weight.data());
        return Results{y, sumsq, dx, d_weight};
      });
    }
  }
}

TEST_CASE("a norm's row does not depend on the rows beside it") {
  Draws draws(7);
  const Index rows = 37, width = 96;
  const Values x = draws.values(rows * width, Draw::mixed), weight = draws.values(width, Draw::normal);
  for (const auto& executor : twin_executors()) {
    Values all(rows * width, 0), one(rows * width, 0);
    executor->norm().rms_norm_forward(rows, width, 1e-5F, false, x.data(), weight.data(), all.data(), nullptr, nullptr);
    for (Index i = 0; i < rows; ++i) {
      executor->norm().rms_norm_forward(1, width, 1e-5F, false, x.data() + i * width, weight.data(),
                                        one.data() + i * width, nullptr, nullptr);
    }
    CHECK(bits_equal(all, one));
  }
}

}  // namespace samba
