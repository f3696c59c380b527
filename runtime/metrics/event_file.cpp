#include "runtime/metrics/event_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fcntl.h>
#include <unistd.h>

#include <boost/crc.hpp>
#include <fmt/format.h>

#include "rendezvous/network.h"
#include "runtime/metrics/run_files.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventPrefix = "events.out.tfevents.";

template <typename Number>
void put_little_endian(std::string& out, Number value) {
  for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// A message of protocol buffers while it is written: fields in any order, defaults left out.
class ProtoMessage {
 public:
  ProtoMessage& number(int field, uint64_t value) {
    tag(field, 0);
    varint(value);
    return *this;
  }
  ProtoMessage& real(int field, double value) {
    tag(field, 1);
    put_little_endian(bytes_, std::bit_cast<uint64_t>(value));
    return *this;
  }
  ProtoMessage& single(int field, float value) {
    tag(field, 5);
    put_little_endian(bytes_, std::bit_cast<uint32_t>(value));
    return *this;
  }
  ProtoMessage& bytes(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoMessage& message(int field, const ProtoMessage& value) { return bytes(field, value.bytes_); }
  const std::string& text() const { return bytes_; }

 private:
  void tag(int field, int type) { varint(static_cast<uint64_t>(field << 3 | type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// The numbers of fields are those of TensorFlow's event.proto, summary.proto and tensor.proto, and
// of TensorBoard's hparams plugin.
constexpr int kSessionStart = 1, kFloat = 1, kString = 7, kTensorData = 2;

ProtoMessage event_at(EventFile::Time now, int64_t step) {
  return ProtoMessage()
      .real(1, std::chrono::duration<double>(now.time_since_epoch()).count())
      .number(2, static_cast<uint64_t>(step));
}

ProtoMessage event_of_value(EventFile::Time now, int64_t step, const ProtoMessage& value) {
  return event_at(now, step).message(5, ProtoMessage().message(1, value));
}

ProtoMessage tensor_shape(uint64_t elements) {
  return ProtoMessage().message(2, ProtoMessage().number(1, elements));
}

ProtoMessage metadata_of(std::string_view name, std::string_view content) {
  return ProtoMessage()
      .message(1, ProtoMessage().bytes(1, name).bytes(2, content))
      .number(4, kTensorData);  // without it, old data classes are guessed
}

uint32_t masked_crc(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data.data(), data.size());
  const uint32_t value = crc.checksum();
  return (value >> 15 | value << 17) + 0xa282ead8U;
}

// Readers take the files in the order of their names, so a name is later than all that are there,
// whatever the clock says.
int64_t file_time(const fs::path& folder, EventFile::Time now) {
  int64_t time = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  std::error_code failure;
  fs::directory_iterator entry(folder, failure);
  for (const fs::directory_iterator end; !failure && entry != end; entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    int64_t there = 0;
    if (!name.starts_with(kEventPrefix)) continue;
    std::from_chars(name.data() + kEventPrefix.size(), name.data() + name.size(), there);
    time = std::max(time, there + 1);
  }
  return time;
}

}  // namespace

std::string event_record(std::string_view data) {
  std::string record;
  record.reserve(data.size() + 16);
  put_little_endian(record, uint64_t{data.size()});
  put_little_endian(record, masked_crc(record));
  record += data;
  put_little_endian(record, masked_crc(data));
  return record;
}

EventFile::EventFile(const fs::path& folder, Time now, int64_t first_step) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  error_ = failure.value();
  if (error_ != 0) return;
  const std::string name =
      fmt::format("{}{:010}.{}.{}", kEventPrefix, file_time(folder, now), host_name(), getpid());
  fd_ = Fd(open((folder / name).c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  error_ = fd_ ? 0 : errno;
  append(event_at(now, 0).bytes(3, "brain.Event:2").text());
  append(event_at(now, first_step).message(7, ProtoMessage().number(1, kSessionStart)).text());
}

int EventFile::scalars(Time now, int64_t step, std::span<const TaggedScalar> scalars) {
  ProtoMessage summary;
  for (const TaggedScalar& scalar : scalars) {
    summary.message(
        1, ProtoMessage().bytes(1, scalar.tag).single(2, static_cast<float>(scalar.value)));
  }
  return append(event_at(now, step).message(5, summary).text());
}

int EventFile::text(Time now, int64_t step, std::string_view tag, std::string_view markdown) {
  const ProtoMessage tensor =
      ProtoMessage().number(1, kString).message(2, tensor_shape(1)).bytes(8, markdown);
  const ProtoMessage value =
      ProtoMessage().bytes(1, tag).message(8, tensor).message(9, metadata_of("text", ""));
  return append(event_of_value(now, step, value).text());
}

int EventFile::settings(Time now, int64_t step, std::span<const TaggedSetting> settings) {
  ProtoMessage session;
  for (const TaggedSetting& setting : settings) {
    ProtoMessage value;
    if (const auto* on = std::get_if<bool>(&setting.value)) {
      value.number(4, *on ? 1 : 0);
    } else if (const auto* number = std::get_if<double>(&setting.value)) {
      value.real(2, *number);
    } else {
      value.bytes(3, std::get<std::string>(setting.value));
    }
    session.message(1, ProtoMessage().bytes(1, setting.key).message(2, value));
  }
  session.real(5, std::chrono::duration<double>(now.time_since_epoch()).count());
  // What counts is in the metadata; readers ask for a tensor all the same.
  const ProtoMessage value =
      ProtoMessage()
          .bytes(1, "_hparams_/session_start_info")
          .message(8, ProtoMessage().number(1, kFloat).message(2, tensor_shape(0)))
          .message(9, metadata_of("hparams", ProtoMessage().message(3, session).text()));
  return append(event_of_value(now, step, value).text());
}

int EventFile::append(std::string_view event) {
  if (!fd_) return error_;
  if (torn_ && ftruncate(fd_.get(), whole_) != 0) return errno;
  const std::string record = event_record(event);
  int error = 0;
  const size_t done = write_some(fd_.get(), record, error);
  torn_ = done > 0 && done < record.size();
  if (done == record.size()) whole_ += static_cast<int64_t>(done);
  return error;
}

}  // namespace mtl
