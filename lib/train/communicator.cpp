#include "samba/train/communicator.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace samba {

namespace {

bool is_power_of_two(int value) { return std::has_single_bit(static_cast<unsigned>(value)); }

}  // namespace

void all_gather(Communicator& ranks, std::span<std::byte> all, std::span<const std::size_t> borders) {
  const int size = ranks.size(), rank = ranks.rank();
  const auto part = [&](int first, int end) {
    const std::size_t begin = borders[static_cast<std::size_t>(first)];
    return all.subspan(begin, borders[static_cast<std::size_t>(end)] - begin);
  };
  if (is_power_of_two(size)) {  // blocks of 1, 2, 4 .. ranks meet
    for (int block = 1; block < size; block *= 2) {
      const int mine = rank / block * block, other = mine ^ block;
      const auto sent = part(mine, mine + block), received = part(other, other + block);
      ranks.exchange(rank ^ block, sent, rank ^ block, received);
    }
    return;
  }
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  for (int step = 0; step + 1 < size; ++step) {  // a ring
    const int sent = (rank + size - step) % size, received = (rank + 2 * size - step - 1) % size;
    ranks.exchange(next, part(sent, sent + 1), previous, part(received, received + 1));
  }
}

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine) {
  const std::vector<std::uint64_t> lengths = gather_values<std::uint64_t>(ranks, mine.size());
  std::vector<std::size_t> borders{0};
  for (const std::uint64_t length : lengths) borders.push_back(borders.back() + length);
  std::string all(borders.back(), '\0');
  const auto rank = static_cast<std::size_t>(ranks.rank());
  std::memcpy(all.data() + borders[rank], mine.data(), mine.size());
  all_gather(ranks, std::as_writable_bytes(std::span(all)), borders);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r) texts.push_back(all.substr(borders[r], lengths[r]));
  return texts;
}

std::string text_of_first(Communicator& ranks, const std::string& mine) {
  return gather_texts(ranks, ranks.rank() == 0 ? mine : std::string()).front();
}

void barrier(Communicator& ranks) { gather_values<char>(ranks, 0); }

void agree_on_failure(Communicator& ranks, const Error* failure) {
  const int kind = failure == nullptr ? -1 : static_cast<int>(failure->kind());
  const std::vector<int> kinds = gather_values(ranks, kind);
  std::size_t failed = 0, first = kinds.size();
  for (std::size_t r = kinds.size(); r-- > 0;) {
    if (kinds[r] < 0) continue;
    ++failed;
    first = r;
  }
  if (failed == 0) return;
  const std::vector<std::string> messages = gather_texts(ranks, failure == nullptr ? "" : failure->what());
  const std::vector<std::string> classes = gather_texts(ranks, failure == nullptr ? "" : failure->error_class());
  const bool alike = failed == kinds.size();
  throw AgreedError(static_cast<ErrorKind>(kinds[first]), classes[first],
                    (alike ? "" : "rank " + std::to_string(first) + ": ") + messages[first]);
}

}  // namespace samba
