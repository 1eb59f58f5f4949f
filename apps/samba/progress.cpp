#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace samba::apps {

namespace {

constexpr double kBarInterval = 0.1;    // seconds between two drawings of the bar
constexpr double kLineInterval = 10.0;  // seconds between two plain lines
constexpr double kShortest = 0.05;      // seconds before a rate means anything
constexpr int kBarWidth = 24;

void write_error(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string format(const char* pattern, double a) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, a);
  return buffer;
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 10.0) return format("%.1f s", seconds);
  const auto whole = static_cast<long>(seconds + 0.5);
  char buffer[64];
  if (whole < 60) {
    std::snprintf(buffer, sizeof buffer, "%ld s", whole);
  } else if (whole < 3600) {
    std::snprintf(buffer, sizeof buffer, "%ld min %02ld s", whole / 60, whole % 60);
  } else {
    std::snprintf(buffer, sizeof buffer, "%ld h %02ld min", whole / 3600, whole / 60 % 60);
  }
  return buffer;
}

Progress::Progress(const std::string& mode, std::string label, std::string unit, std::uint64_t first,
                   std::uint64_t total)
    : shown_(mode != "never"),
      bar_(::isatty(STDERR_FILENO) == 1),
      label_(std::move(label)),
      unit_(std::move(unit)),
      first_(first),
      total_(total),
      done_(first) {}

Progress::~Progress() { erase(); }

std::string Progress::line(std::uint64_t done, const std::string& note) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = elapsed > kShortest ? static_cast<double>(done - first_) / elapsed : 0.0;
  std::string text = label_ + " ";
  if (bar_ && total_ > 0) {
    const auto filled = static_cast<int>(static_cast<double>(done) / static_cast<double>(total_) * kBarWidth);
    text += "[" + std::string(static_cast<std::size_t>(std::clamp(filled, 0, kBarWidth)), '#') +
            std::string(static_cast<std::size_t>(std::clamp(kBarWidth - filled, 0, kBarWidth)), '.') + "] ";
  }
  text += std::to_string(done) + (total_ > 0 ? "/" + std::to_string(total_) : "") + " " + unit_;
  if (!note.empty()) text += "  " + note;
  if (rate > 0.0) {
    text += format(rate >= 10.0 ? "  %.0f " : "  %.2f ", rate) + unit_ + "/s";
    if (total_ > done) text += "  " + duration_text(static_cast<double>(total_ - done) / rate) + " left";
  }
  return text;
}

void Progress::erase() {
  if (drawn_) write_error("\r\033[K");
  drawn_ = false;
}

void Progress::update(std::uint64_t done, const std::string& note) {
  done_ = done;
  note_ = note;
  pending_ = true;
  if (!shown_) return;
  const Clock::time_point now = Clock::now();
  if (std::chrono::duration<double>(now - last_).count() < (bar_ ? kBarInterval : kLineInterval)) return;
  last_ = now;
  pending_ = false;
  if (bar_) {
    write_error("\r\033[K" + line(done, note));
    drawn_ = true;
  } else {
    write_error(line(done, note) + "\n");
  }
}

void Progress::say(const std::string& text) {
  if (!shown_) return;
  erase();
  write_error(text + "\n");
}

void Progress::finish() {
  if (!shown_) return;
  erase();
  if (bar_ || pending_) write_error(line(done_, note_) + "\n");
  pending_ = false;
}

}  // namespace samba::apps
