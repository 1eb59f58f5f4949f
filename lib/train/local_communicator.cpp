#include "samba/train/local_communicator.h"

#include <cstring>
#include <thread>

namespace samba {

class LocalRanks::Rank final : public Communicator {
 public:
  Rank(LocalRanks& ranks, int rank) : ranks_(ranks), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return ranks_.size_; }
  std::string name() const override { return "threads"; }

  void exchange(int to, std::span<const std::byte> sent, int from, std::span<std::byte> received) override {
    std::unique_lock lock(ranks_.mutex_);
    if (!sent.empty()) {
      ranks_.letters_[{rank_, to}].emplace_back(sent.begin(), sent.end());
      ranks_.bytes_sent_ += sent.size();
      ranks_.arrived_.notify_all();
    }
    if (received.empty()) return;
    auto& letters = ranks_.letters_[{from, rank_}];
    const bool in_time =
        ranks_.arrived_.wait_for(lock, ranks_.patience_, [&] { return !letters.empty() || ranks_.lost_ >= 0; });
    if (letters.empty()) {
      throw Error(ErrorKind::resource, kLostRankClass,
                  in_time ? "rank " + std::to_string(ranks_.lost_) + " was lost"
                          : "rank " + std::to_string(from) + " does not answer");
    }
    const std::vector<std::byte> letter = std::move(letters.front());
    letters.pop_front();
    if (letter.size() != received.size()) {
      throw Error(ErrorKind::internal, "rank " + std::to_string(from) + " sent " + std::to_string(letter.size()) +
                                           " bytes, " + std::to_string(received.size()) + " were expected");
    }
    std::memcpy(received.data(), letter.data(), letter.size());
  }

 private:
  LocalRanks& ranks_;
  int rank_;
};

void LocalRanks::run(const std::function<void(Communicator&)>& body) {
  letters_.clear();
  lost_ = -1;
  failure_ = nullptr;
  std::vector<std::thread> threads;
  for (int r = 0; r < size_; ++r) {
    threads.emplace_back([this, r, &body] {
      try {
        Rank rank(*this, r);
        body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (lost_ < 0) {
          lost_ = r;
          failure_ = std::current_exception();
        }
        arrived_.notify_all();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

}  // namespace samba
