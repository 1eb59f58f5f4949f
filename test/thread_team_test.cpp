#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "samba/core/thread_team.h"

namespace samba {

TEST_CASE("every member of a task is called once, task after task, also after the team fell asleep") {
  for (const int size : {1, 2, 3, 7}) {
    ThreadTeam team(size);
    for (int members = 1; members <= size; ++members) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(size));
      for (int task = 0; task < 200; ++task) {
        team.run(members, [&](int member) { ++calls[static_cast<std::size_t>(member)]; });
        if (task % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      for (int member = 0; member < size; ++member) {
        CHECK(calls[static_cast<std::size_t>(member)] == (member < members ? 200 : 0));
      }
    }
  }
}

TEST_CASE("an exception of any member reaches the caller when all are done, and the team goes on") {
  ThreadTeam team(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    std::atomic<int> finished{0};
    const auto task = [&](int member) {
      if (member == thrower) throw std::runtime_error("member failed");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++finished;
    };
    CHECK_THROWS_WITH(team.run(3, task), "member failed");
    CHECK(finished == 2);
    team.run(3, [&](int) { ++finished; });
    CHECK(finished == 5);
  }
}

}  // namespace samba
