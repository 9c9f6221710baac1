import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.ConsumerUpdateListener;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.NoOffsetException;
import com.rabbitmq.stream.OffsetSpecification;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Consumes a stream, or all partitions of a super stream. */
final class Reader implements AutoCloseable {
  final Inbox events = new Inbox();
  final Inbox messages = new Inbox();
  final Consumer consumer;

  Reader(Environment environment, Asked asked) {
    ConsumerBuilder builder = environment.consumerBuilder().listeners(events.closing());
    if (asked.stream != null) {
      builder.stream(asked.stream);
    } else {
      builder.superStream(asked.superStream);
    }
    OffsetSpecification from = asked.start();
    builder.offset(from);
    if (asked.name != null) {
      builder.name(asked.name);
      if (asked.storeEvery > 0) {
        builder.autoTrackingStrategy().messageCountBeforeStorage(asked.storeEvery);
      } else {
        builder.manualTrackingStrategy();
      }
    } else {
      builder.noTrackingStrategy();
    }
    if (asked.singleActive) {
      builder.singleActiveConsumer().consumerUpdateListener(context -> updated(context, from));
    }
    if (asked.filterValues != null) {
      builder
          .filter()
          .values(asked.filterValues.toArray(new String[0]))
          .matchUnfiltered(asked.matchUnfiltered)
          .postFilter(
              message -> {
                String value = Writer.property(message, "filter");
                return value == null ? asked.matchUnfiltered : asked.filterValues.contains(value);
              });
    }
    builder.messageHandler(
        (context, message) ->
            messages.add(
                List.of(
                    context.stream(),
                    context.offset(),
                    new String(message.getBodyAsBinary(), StandardCharsets.UTF_8))));
    consumer = builder.build();
  }

  /** Goes on behind what is stored, as a program of this client does. */
  private OffsetSpecification updated(
      ConsumerUpdateListener.Context context, OffsetSpecification from) {
    events.add(List.of(context.stream(), context.isActive()));
    if (!context.isActive()) {
      return OffsetSpecification.none();
    }
    Long stored = stored(context.consumer());
    return stored == null ? from : OffsetSpecification.offset(stored + 1);
  }

  /** The offset that the broker has of the consumer's name, null where it has none. */
  static Long stored(Consumer consumer) {
    try {
      return consumer.storedOffset();
    } catch (NoOffsetException none) {
      return null;
    }
  }

  @Override
  public void close() {
    consumer.close();
  }
}
