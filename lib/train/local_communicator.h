// Ranks that are threads of one process: for tests, and the plainest implementation of a Communicator.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "samba/train/communicator.h"

namespace samba {

class LocalRanks {
 public:
  explicit LocalRanks(int size, std::chrono::milliseconds patience = std::chrono::minutes(10))
      : size_(size), patience_(patience) {}

  // Runs body(communicator) on one thread a rank and returns when all have ended. A body that throws is a lost rank to
  // the others. The error of the rank that failed first is thrown again here.
  void run(const std::function<void(Communicator&)>& body);

  std::uint64_t bytes_sent() const { return bytes_sent_; }  // by all ranks so far

 private:
  class Rank;

  int size_;
  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> letters_;  // by (from, to)
  std::uint64_t bytes_sent_ = 0;
  int lost_ = -1;
  std::exception_ptr failure_;
};

}  // namespace samba
