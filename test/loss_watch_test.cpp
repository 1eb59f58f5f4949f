// When the loss of a step leaps.
#include "samba/train/loss_watch.h"

#include <catch2/catch.hpp>

namespace samba {
namespace {

// Losses about 2 that go up and down by `by`.
double noise(int step, double by) { return 2.0 + (step % 2 == 0 ? by : -by); }

TEST_CASE("a loss more than six deviations above the mean of the last ones is told, with mean, deviation and limit") {
  LossWatch watch({6.0, 100});
  for (int step = 0; step < 40; ++step) CHECK_FALSE(watch.add(noise(step, 0.1)));
  CHECK_FALSE(watch.add(2.59));
  LossWatch other({6.0, 100});
  for (int step = 0; step < 40; ++step) other.add(noise(step, 0.1));
  const auto spike = other.add(2.61);
  REQUIRE(spike);
  CHECK(spike->mean == Approx(2.0));
  CHECK(spike->deviation == Approx(0.1));
  CHECK(spike->limit == Approx(2.6));
}

TEST_CASE("the first twenty losses are not judged, and a loss that falls fast is no leap") {
  LossWatch watch({6.0, 100});
  for (int step = 0; step < 19; ++step) watch.add(noise(step, 0.1));
  CHECK_FALSE(watch.add(50.0));
  LossWatch falling({6.0, 100});
  for (int step = 1; step < 400; ++step) CHECK_FALSE(falling.add(5.5 / (1.0 + 0.05 * step) + noise(step, 0.05)));
}

TEST_CASE("a loss that stays up is told once, and again after it was down") {
  LossWatch watch({6.0, 30});
  for (int step = 0; step < 30; ++step) watch.add(noise(step, 0.1));
  CHECK(watch.add(9.0));
  CHECK_FALSE(watch.add(40.0));
  CHECK_FALSE(watch.add(2.0));
  for (int step = 0; step < 40; ++step) CHECK_FALSE(watch.add(noise(step, 0.1)));  // the window forgets
  CHECK(watch.add(9.0));
}

TEST_CASE("a loss that hardly moves is judged by a hundredth of its mean; no deviations tell nothing") {
  LossWatch watch({6.0, 100});
  for (int step = 0; step < 50; ++step) watch.add(2.0);
  CHECK_FALSE(watch.add(2.11));
  CHECK(watch.add(2.14));
  LossWatch silent({0.0, 100});
  for (int step = 0; step < 50; ++step) silent.add(2.0);
  CHECK_FALSE(silent.add(1e9));
}

}  // namespace
}  // namespace samba
