// Progress on stderr: a bar that redraws itself when stderr is a terminal, a plain line every few seconds when not.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace samba::apps {

class Progress {
 public:
  // mode: "auto" (the bar on a terminal, plain lines else), "always", "never". `unit` is what is counted: "steps".
  Progress(const std::string& mode, std::string label, std::string unit, std::uint64_t first, std::uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // On a terminal the note has a line of its own below the bar.
  void set_note_below() { note_below_ = bar_; }
  // `note` is shown beside the bar: "loss 3.2145".
  void update(std::uint64_t done, const std::string& note = "");
  // A line that stays: above the bar, or as it is.
  void say(const std::string& text);
  // Takes the bar away until the next update, for whoever writes to stderr.
  void clear() { erase(); }
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string line(std::uint64_t done, const std::string& note) const;
  void draw(std::uint64_t done, const std::string& note);
  void erase();

  bool shown_;
  bool bar_;
  std::string label_;
  std::string unit_;
  std::uint64_t first_;
  std::uint64_t total_;
  std::uint64_t done_;
  std::string note_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_{};
  bool drawn_ = false;
  bool note_below_ = false;
  bool pending_ = false;  // an update that was not shown yet
};

// "1 h 02 min", "3 min 05 s", "4.2 s"
std::string duration_text(double seconds);

}  // namespace samba::apps
