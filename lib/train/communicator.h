// The processes ("ranks") that train one model together, and how bytes go between them.
//
// An implementation moves bytes between two ranks; whatever has an order of arithmetic is built above it
// (rank_group.h), so that no library's reduction decides the order of a sum. Implementations: threads of one process
// (local_communicator.h) and MPI (mpi_communicator.h). One of NCCL or of another network implements the same functions.
//
// Threads: used by one thread at a time. Calls of one pair of ranks meet in the order in which each side makes them.
// Errors: a rank that is lost, or does not answer in time, is Error(resource) of the class kLostRankClass; after it
// every further call fails.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "samba/core/error.h"

namespace samba {

inline constexpr const char* kLostRankClass = "lost_rank";

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // 0 .. size() - 1
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "MPI", "threads"

  // Sends to one rank and receives from one (often the same) at once; returns when both are done. An empty span:
  // nothing goes that way, and the other side knows.
  virtual void exchange(int to, std::span<const std::byte> sent, int from, std::span<std::byte> received) = 0;
  void send(int to, std::span<const std::byte> sent) { exchange(to, sent, to, {}); }
  void receive(int from, std::span<std::byte> received) { exchange(from, {}, from, received); }

  // The end that all ranks reach. Without it the destructor leaves the others to find this rank lost.
  virtual void finish() {}
};

// An error that every rank throws at the same place: rank 0 tells it.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// ---- built on exchange(); every rank makes the call ----

// `all`: the parts of all ranks end to end, part r at [borders[r], borders[r + 1]); each rank brings its own.
void all_gather(Communicator& ranks, std::span<std::byte> all, std::span<const std::size_t> borders);
// One value of each rank, in the order of ranks.
template <class T>
std::vector<T> gather_values(Communicator& ranks, const T& mine);
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine);
// The text of rank 0.
std::string text_of_first(Communicator& ranks, const std::string& mine);
void barrier(Communicator& ranks);

// Runs `work` on this rank; when it fails on any rank, all throw the error of the lowest one (AgreedError; its message
// names the rank unless all failed alike). A lost rank is thrown as it is.
template <class Work>
void agreed(Communicator* ranks, Work&& work);
// The second half of it: `failure` is this rank's error, or null.
void agree_on_failure(Communicator& ranks, const Error* failure);

template <class T>
std::vector<T> gather_values(Communicator& ranks, const T& mine) {
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<T> all(size);
  std::vector<std::size_t> borders;
  for (std::size_t r = 0; r <= size; ++r) borders.push_back(r * sizeof(T));
  all[static_cast<std::size_t>(ranks.rank())] = mine;
  all_gather(ranks, std::as_writable_bytes(std::span(all)), borders);
  return all;
}

template <class Work>
void agreed(Communicator* ranks, Work&& work) {
  if (ranks == nullptr) {
    work();
    return;
  }
  std::unique_ptr<Error> failure;
  try {
    work();
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {
    if (error.error_class() == kLostRankClass) throw;
    failure = std::make_unique<Error>(error);
  } catch (const std::bad_alloc&) {
    failure = std::make_unique<Error>(ErrorKind::resource, "out of memory");
  } catch (const std::exception& error) {
    failure = std::make_unique<Error>(ErrorKind::internal, error.what());
  }
  agree_on_failure(*ranks, failure.get());
}

}  // namespace samba
