// An assembly line: one thread fetches batches of texts, several encode them, the caller takes them out in the order in
// which they were fetched. Few batches are on the line at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "samba/text/tokenizer.h"
#include "samba/train/documents.h"

namespace samba {

inline constexpr std::size_t kBatchBytes = std::size_t{1} << 18;

struct EncodeBatch {
  std::vector<DocumentPiece> pieces;
  std::size_t text_bytes = 0;
  std::uint64_t dropped = 0;     // documents dropped up to here
  std::uint64_t bytes_read = 0;  // of the files
  // Filled in on the line:
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends;  // in `ids`, one a piece
};

class EncodeLine {
 public:
  // `fetch` is called by one thread alone, until it gives nullopt.
  EncodeLine(const Tokenizer& tokenizer, int threads, std::function<std::optional<EncodeBatch>()> fetch);
  ~EncodeLine();
  EncodeLine(const EncodeLine&) = delete;
  EncodeLine& operator=(const EncodeLine&) = delete;

  // The next batch, or nullopt behind the last. An exception of the line is thrown again here, after the batches that
  // came before it.
  std::optional<EncodeBatch> next();

 private:
  struct Slot {
    EncodeBatch batch;
    bool encoded = false;
    std::exception_ptr failure;
  };

  void end();  // of all threads
  void fetch_all();
  void encode_some();

  const Tokenizer& tokenizer_;
  std::function<std::optional<EncodeBatch>()> fetch_;
  std::size_t most_;  // batches on the line
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Slot> slots_;  // by number
  std::uint64_t fetched_ = 0;
  std::uint64_t started_ = 0;  // encoding of all before was begun
  std::uint64_t taken_ = 0;
  bool ended_ = false;  // nothing more is fetched
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace samba
