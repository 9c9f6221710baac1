import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.MessageBuilder;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.compression.Compression;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Publishes to a stream, or to all partitions of a super stream. */
final class Writer implements AutoCloseable {
  final Inbox events = new Inbox();
  final Producer producer;

  Writer(Environment environment, Asked asked) {
    ProducerBuilder builder =
        environment
            .producerBuilder()
            .confirmTimeout(Inbox.PATIENCE)
            .enqueueTimeout(Inbox.PATIENCE)
            .listeners(events.closing());
    if (asked.stream != null) {
      builder.stream(asked.stream);
    } else {
      ProducerBuilder.RoutingConfiguration routing =
          builder
              .superStream(asked.superStream)
              .routing(message -> property(message, "key"));
      builder =
          (asked.routing.equals("hash") ? routing.hash() : routing.key())
              .producerBuilder();
    }
    if (asked.name != null) {
      builder.name(asked.name);
    }
    if (asked.filter) {
      builder.filterValue(message -> property(message, "filter"));
    }
    if (asked.entrySize > 0) {
      builder.subEntrySize(asked.entrySize);
      builder.compression(Compression.valueOf(asked.compression.toUpperCase(Locale.ROOT)));
    }
    producer = builder.build();
  }

  Object send(Asked asked) throws InterruptedException {
    int count = asked.messages.size();
    AtomicInteger confirmed = new AtomicInteger();
    Set<Integer> codes = Collections.synchronizedSet(new TreeSet<>());
    CountDownLatch answered = new CountDownLatch(count);
    for (Asked.Sent each : asked.messages) {
      producer.send(
          message(each),
          status -> {
            if (status.isConfirmed()) {
              confirmed.incrementAndGet();
            } else {
              codes.add((int) status.getCode());
            }
            answered.countDown();
          });
    }
    if (!answered.await(Inbox.PATIENCE.toSeconds(), TimeUnit.SECONDS)) {
      throw new IllegalStateException(answered.getCount() + " of " + count + " have no answer");
    }
    return Map.of("confirmed", confirmed.get(), "codes", codes);
  }

  private Message message(Asked.Sent from) {
    MessageBuilder builder = producer.messageBuilder();
    if (from.key != null) {
      builder.applicationProperties().entry("key", from.key);
    }
    if (from.filter != null) {
      builder.applicationProperties().entry("filter", from.filter);
    }
    if (from.id != null) {
      builder.publishingId(from.id);
    }
    return builder.addData(from.body.getBytes(StandardCharsets.UTF_8)).build();
  }

  /** An application property, null where there is none. */
  static String property(Message message, String name) {
    Map<String, Object> properties = message.getApplicationProperties();
    return properties == null ? null : (String) properties.get(name);
  }

  @Override
  public void close() {
    producer.close();
  }
}
