#include "samba/train/encode_line.h"

#include <algorithm>

namespace samba {

namespace {

void encode_batch(const Tokenizer& tokenizer, EncodeBatch& batch) {
  batch.ids.reserve(batch.text_bytes / 3);
  for (DocumentPiece& piece : batch.pieces) {
    tokenizer.encode_to(piece.text, {}, batch.ids);
    batch.ends.push_back(batch.ids.size());
    piece.text = std::string();
  }
}

}  // namespace

EncodeLine::EncodeLine(const Tokenizer& tokenizer, int threads, std::function<std::optional<EncodeBatch>()> fetch)
    : tokenizer_(tokenizer), fetch_(std::move(fetch)), most_(static_cast<std::size_t>(std::max(1, threads)) * 4 + 2) {
  try {
    threads_.emplace_back([this] { fetch_all(); });
    for (int i = 0; i < std::max(1, threads); ++i) threads_.emplace_back([this] { encode_some(); });
  } catch (...) {  // no thread to be had, or no memory for one
    end();
    throw;
  }
}

EncodeLine::~EncodeLine() { end(); }

void EncodeLine::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void EncodeLine::fetch_all() {
  while (true) {
    Slot slot;
    bool last = false;
    try {
      std::optional<EncodeBatch> batch = fetch_();
      last = !batch;
      if (batch) slot.batch = std::move(*batch);
    } catch (...) {
      slot.failure = std::current_exception();
      slot.encoded = true;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || slots_.size() < most_; });
    if (stop_) return;
    if (!last) slots_.emplace(fetched_++, std::move(slot));
    ended_ = last || slots_.rbegin()->second.failure != nullptr;
    changed_.notify_all();
    if (ended_) return;
  }
}

void EncodeLine::encode_some() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || started_ < fetched_ || ended_; });
    if (stop_ || started_ == fetched_) return;
    const auto found = slots_.find(started_++);
    // A failure to fetch is as good as encoded, and may have been taken.
    if (found == slots_.end() || found->second.encoded) continue;
    Slot& slot = found->second;  // stays in its place until it is encoded
    lock.unlock();
    try {
      encode_batch(tokenizer_, slot.batch);
    } catch (...) {
      slot.failure = std::current_exception();
    }
    lock.lock();
    slot.encoded = true;
    changed_.notify_all();
  }
}

std::optional<EncodeBatch> EncodeLine::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    const auto found = slots_.find(taken_);
    return (found != slots_.end() && found->second.encoded) || (ended_ && taken_ == fetched_);
  });
  const auto found = slots_.find(taken_);
  if (found == slots_.end()) return std::nullopt;
  Slot slot = std::move(found->second);
  slots_.erase(found);
  ++taken_;
  changed_.notify_all();
  lock.unlock();
  if (slot.failure) std::rethrow_exception(slot.failure);
  return std::move(slot.batch);
}

}  // namespace samba
