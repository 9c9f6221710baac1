// Does with Microsoft's client of Event Hubs for JavaScript what each line of stdin tells it (JSON), and answers with a
// line of stdout: {"value": …}, or {"error": {"name", "code", "message", "retryable"}}.
//
// "as" names what is made, "of" what was made. Bytes are {"hex": "00ff"} both ways; an instant is {"ms": 5} on the way
// to here, and a number on the way back:
//
//     producer    as, connection, hub
//     send        of, events, partition, key, and plain: without a batch object
//     fill        of, event, partition: send a batch of as many as it takes; gives their number and the largest size
//     buffered    connection, hub, events, partition, key: by a buffered producer, which is closed afterwards
//     hub         of: properties of the hub
//     partition   of, partition: properties of a partition
//     store       as: checkpoints and ownerships of partitions
//     consumer    as, connection, hub, group, store, balance: LoadBalancingOptions, retries, identifier
//     subscribe   as, of, partition (none: all), start, options: SubscribeOptions
//     take        of, count: all events that came, once there are so many
//     failure     of: the first error that came, which then is told; no take raises it any more
//     owned       of, counts: of a list of subscriptions, the partitions of each, once they have so many
//     closed      of, partition: why a partition was closed, once it is
//     checkpoint  of, partition, offset: note that the events of a partition are processed up to an offset
//     close       of
'use strict';

const readline = require('node:readline');
const {
    EventHubBufferedProducerClient, EventHubConsumerClient, EventHubProducerClient,
} = require('@azure/event-hubs');

// After this long a test has failed.
const GUARD_MS = 240_000;
const SELDOM_MS = 3_600_000;
const made = new Map();

function often(retries = 0) {
    return {maxRetries: retries, retryDelayInMs: 100, timeoutInMs: GUARD_MS};
}

// --- values

function plain(value) {
    if (value instanceof Date) return value.getTime();
    if (value instanceof Uint8Array) return {hex: Buffer.from(value).toString('hex')};
    if (Array.isArray(value)) return value.map(plain);
    if (value !== null && typeof value === 'object') {
        return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plain(each)]));
    }
    return value === undefined ? null : value;
}

function given(value) {
    if (Array.isArray(value)) return value.map(given);
    if (value === null || typeof value !== 'object') return value;
    if ('hex' in value) return Buffer.from(value.hex, 'hex');
    if ('ms' in value) return new Date(value.ms);
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, given(each)]));
}

function described(error) {
    return {name: error.name, code: plain(error.code), message: error.message, retryable: plain(error.retryable)};
}

function describedEvent(event, context) {
    const raw = event.getRawAmqpMessage();
    return plain({...event, getRawAmqpMessage: null, bodyType: raw.bodyType, partition: context.partitionId});
}

// --- checkpoints

class Store {
    ownerships = new Map();
    checkpoints = new Map();
    version = 0;

    async listOwnership(namespace, hub, group) {
        return this.of(this.ownerships, namespace, hub, group);
    }

    async claimOwnership(wanted) {
        const claimed = wanted.filter((each) => this.ownerships.get(this.key(each))?.etag === each.etag);
        return claimed.map((each) => {
            const ownership = {...each, etag: String(++this.version), lastModifiedTimeInMs: Date.now()};
            this.ownerships.set(this.key(each), ownership);
            return {...ownership};
        });
    }

    async updateCheckpoint(checkpoint) {
        this.checkpoints.set(this.key(checkpoint), {...checkpoint});
    }

    async listCheckpoints(namespace, hub, group) {
        return this.of(this.checkpoints, namespace, hub, group);
    }

    key(of) {
        return [of.fullyQualifiedNamespace, of.eventHubName, of.consumerGroup, of.partitionId].join('\n');
    }

    of(entries, namespace, hub, group) {
        return [...entries.values()]
            .filter((each) => each.fullyQualifiedNamespace === namespace)
            .filter((each) => each.eventHubName === hub && each.consumerGroup === group)
            .map((each) => ({...each}));
    }
}

// --- receiving

class Receiving {
    events = [];
    errors = [];
    contexts = new Map();
    owned = new Set();
    reasons = {};

    constructor(consumer, {partition, start, options}) {
        const handlers = {
            processInitialize: async (context) => {
                this.owned.add(context.partitionId);
                changed();
            },
            processEvents: async (events, context) => {
                this.contexts.set(context.partitionId, context);
                this.events.push(...events.map((event) => ({
                    ...describedEvent(event, context), last: plain(context.lastEnqueuedEventProperties),
                })));
                changed();
            },
            processError: async (error) => {
                this.errors.push(described(error));
                changed();
            },
            processClose: async (reason, context) => {
                this.owned.delete(context.partitionId);
                this.reasons[context.partitionId] = reason;
                changed();
            },
        };
        const chosen = {startPosition: given(start), maxBatchSize: 1_000, ...options};
        this.subscription = partition === undefined
            ? consumer.subscribe(handlers, chosen) : consumer.subscribe(partition, handlers, chosen);
    }

    close() {
        return this.subscription.close();
    }
}

const waiting = [];

function changed() {
    for (const resolve of waiting.splice(0)) resolve();
}

async function until(found) {
    const last = Date.now() + GUARD_MS;
    const guard = setTimeout(changed, GUARD_MS);
    try {
        for (;;) {
            const value = found();
            if (value !== undefined) return value;
            if (Date.now() >= last) throw new Error(`nothing of it came in ${GUARD_MS} ms`);
            await new Promise((resolve) => { waiting.push(resolve); });
        }
    } finally {
        clearTimeout(guard);
    }
}

class Failed extends Error {
    constructor(described) {
        super(described.message);
        this.described = described;
    }
}

// --- what can be asked for

async function batchOf(producer, {partition, key}) {
    return producer.createBatch({partitionId: partition, partitionKey: key});
}

const asked = {
    async producer({connection, hub}) {
        return new EventHubProducerClient(connection, hub, {retryOptions: often()});
    },

    async send(request) {
        const {of, events, partition, key, plain} = request;
        if (plain) return of.sendBatch(given(events), {partitionId: partition, partitionKey: key});
        const batch = await batchOf(of, request);
        for (const event of given(events)) {
            if (!batch.tryAdd(event)) throw new RangeError(`the batch is full after ${batch.count} events`);
        }
        return of.sendBatch(batch);
    },

    async fill(request) {
        const batch = await batchOf(request.of, request);
        const event = given(request.event);
        while (batch.tryAdd(event));
        await request.of.sendBatch(batch);
        return {count: batch.count, most: batch.maxSizeInBytes};
    },

    async buffered({connection, hub, events, partition, key}) {
        const errors = [];
        const producer = new EventHubBufferedProducerClient(connection, hub, {
            retryOptions: often(),
            maxWaitTimeInMs: 100,
            onSendEventsErrorHandler: async (context) => { errors.push(context.error); },
        });
        await producer.enqueueEvents(given(events), {partitionId: partition, partitionKey: key});
        await producer.close({flush: true});
        if (errors.length) throw errors[0];
    },

    async hub({of}) {
        return plain(await of.getEventHubProperties());
    },

    async partition({of, partition}) {
        return plain(await of.getPartitionProperties(partition));
    },

    async store() {
        return new Store();
    },

    async consumer({connection, hub, group, store, balance, retries, identifier}) {
        const options = {
            retryOptions: often(retries), identifier,
            loadBalancingOptions: {updateIntervalInMs: SELDOM_MS, ...balance},
        };
        const checkpoints = store === undefined ? [] : [made.get(store)];
        return new EventHubConsumerClient(group, connection, hub, ...checkpoints, options);
    },

    async subscribe({of, ...how}) {
        return new Receiving(of, how);
    },

    take({of, count}) {
        return until(() => {
            if (of.errors.length) throw new Failed(of.errors[0]);
            return of.events.length >= count ? of.events : undefined;
        });
    },

    failure({of}) {
        return until(() => of.errors.shift());
    },

    owned({of, counts}) {
        return until(() => {
            const owned = of.map((each) => [...each.owned].sort());
            return owned.every((each, n) => each.length === counts[n]) ? owned : undefined;
        });
    },

    closed({of, partition}) {
        return until(() => of.reasons[partition]);
    },

    checkpoint({of, partition, offset}) {
        const event = of.events.find((each) => each.partition === partition && each.offset === offset);
        return of.contexts.get(partition).updateCheckpoint(event);
    },

    close({of}) {
        return of.close();
    },
};

async function answer(line) {
    const {do: what, as, of, ...rest} = JSON.parse(line);
    try {
        const subject = Array.isArray(of) ? of.map((each) => made.get(each)) : made.get(of);
        const value = await asked[what]({of: subject, ...rest});
        if (as === undefined) return {value: value === undefined ? null : value};
        made.set(as, value);
        return {value: null};
    } catch (error) {
        return {error: error instanceof Failed ? error.described : described(error)};
    }
}

async function main() {
    for await (const line of readline.createInterface({input: process.stdin})) {
        process.stdout.write(`${JSON.stringify(await answer(line))}\n`);
    }
}

main().then(() => process.exit(0));
